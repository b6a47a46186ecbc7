//! The fixed table of outstanding commands of a host's connection, by identifier.

use super::Direction;

/// One command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    /// Length of its data outside the capsule, in bytes.
    pub(super) length: u32,
    /// How much of it has come, or has been asked for with R2Ts.
    pub(super) moved: u32,
    /// R2Ts that have not been served.
    pub(super) transfers: u32,
    /// Where its data outside the capsule goes; none when it has none.
    pub(super) direction: Option<Direction>,
    /// The last C2HData has come.
    pub(super) last_seen: bool,
    /// Every data digest so far fitted.
    pub(super) digest_ok: bool,
    active: bool,
}

const IDLE: Outstanding = Outstanding {
    length: 0,
    moved: 0,
    transfers: 0,
    direction: None,
    last_seen: false,
    digest_ok: true,
    active: false,
};

/// The table.
#[derive(Debug)]
pub(super) struct Commands {
    table: Vec<Outstanding>,
    active: u32,
}

impl Commands {
    pub(super) fn new(entries: u32) -> Self {
        assert!(
            (1..=65536).contains(&entries),
            "a queue has 1 to 65536 entries, not {entries}"
        );
        Self {
            table: vec![IDLE; entries as usize],
            active: 0,
        }
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.active
    }

    /// Makes a command of ours outstanding.
    pub(super) fn begin(&mut self, cid: u16) {
        let entries = self.table.len();
        let entry = self.table.get_mut(cid as usize);
        let entry = entry.unwrap_or_else(|| panic!("command {cid} in a queue of {entries} entries"));
        assert!(!entry.active, "command {cid} is already outstanding");
        *entry = Outstanding { active: true, ..IDLE };
        self.active += 1;
    }

    /// A command named on the wire, if it is outstanding.
    pub(super) fn find(&mut self, cid: u16) -> Option<&mut Outstanding> {
        self.table.get_mut(cid as usize).filter(|entry| entry.active)
    }

    /// A command found before.
    pub(super) fn get_mut(&mut self, cid: u16) -> &mut Outstanding {
        &mut self.table[cid as usize]
    }

    /// Ends a command found before.
    pub(super) fn end(&mut self, cid: u16) {
        let entry = self.get_mut(cid);
        assert!(entry.active, "command {cid} ends twice");
        entry.active = false;
        self.active -= 1;
    }
}
