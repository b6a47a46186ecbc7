//! The fixed table of outstanding commands of a controller's connection.

/// How far a slot's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No command.
    Free,
    /// A command that has not been answered.
    Open,
    /// A command that has been answered or abandoned while data for it is still due: it is swallowed.
    Draining,
}

/// One slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Length of the data the command brings or has asked for, in bytes; 0 for none.
    pub(super) total: u32,
    /// How much more there is, which is asked for only when somebody says so; in bytes.
    pub(super) held_back: u32,
    /// Where what was held back begins, in bytes; 0 as long as nothing of it is asked for.
    pub(super) split: u32,
    /// How much of it is under way: asked for with R2Ts, or in the capsule.
    pub(super) requested: u32,
    /// How much of it has come.
    pub(super) received: u32,
    pub(super) cid: u16,
    pub(super) stage: Stage,
    /// The connection is in the middle of a PDU with data for it.
    pub(super) arriving: bool,
    /// Every data digest so far fitted.
    pub(super) digest_ok: bool,
    /// It is in the queue of slots with R2Ts due.
    pub(super) queued: bool,
}

const FREE: Slot = Slot {
    total: 0,
    held_back: 0,
    split: 0,
    requested: 0,
    received: 0,
    cid: 0,
    stage: Stage::Free,
    arriving: false,
    digest_ok: true,
    queued: false,
};

impl Slot {
    /// R2Ts whose data has not wholly come. Every R2T but the last of a command, and the last before what was held back,
    /// asks for `r2t_bytes`, and a host serves a command's R2Ts in order, so the offsets say which are open.
    pub(super) fn outstanding_r2t(&self, r2t_bytes: u32) -> u32 {
        if self.received == self.requested {
            0
        } else {
            // What was held back is asked for when everything before it has come.
            (self.requested - self.split).div_ceil(r2t_bytes) - (self.received - self.split) / r2t_bytes
        }
    }

    /// First byte and end of the R2T that is being served; none when nothing is due.
    pub(super) fn window(&self, r2t_bytes: u32) -> Option<(u32, u32)> {
        if self.received == self.requested {
            return None;
        }
        let begin = self.received - (self.received - self.split) % r2t_bytes;
        Some((begin, begin.saturating_add(r2t_bytes).min(self.requested)))
    }
}

/// The table. Free slots are taken last in, first out, so that few commands touch few cache lines.
#[derive(Debug)]
pub(super) struct Slots {
    table: Vec<Slot>,
    free: Vec<u16>,
}

impl Slots {
    pub(super) fn new(entries: u32) -> Self {
        let mut slots = Self {
            table: Vec::new(),
            free: Vec::new(),
        };
        slots.grow(entries);
        slots
    }

    pub(super) fn entries(&self) -> u32 {
        self.table.len() as u32
    }

    pub(super) fn in_use(&self) -> u32 {
        (self.table.len() - self.free.len()) as u32
    }

    pub(super) fn grow(&mut self, entries: u32) {
        assert!(
            (1..=65536).contains(&entries),
            "a queue has 1 to 65536 entries, not {entries}"
        );
        let before = self.table.len();
        assert!(
            entries as usize >= before,
            "a queue of {before} entries does not shrink to {entries}"
        );
        self.table.resize(entries as usize, FREE);
        self.free.reserve_exact(entries as usize - self.free.len());
        self.free
            .extend((before..entries as usize).map(|slot| slot as u16));
        // Low numbers come out first.
        self.free.sort_unstable_by(|left, right| right.cmp(left));
    }

    /// Takes a free slot for a command; none when the table is full.
    pub(super) fn open(&mut self, cid: u16) -> Option<u16> {
        let slot = self.free.pop()?;
        self.table[slot as usize] = Slot {
            cid,
            stage: Stage::Open,
            // A slot freed while queued stays queued: it is taken out only by the queue's reader.
            queued: self.table[slot as usize].queued,
            ..FREE
        };
        Some(slot)
    }

    pub(super) fn free(&mut self, slot: u16) {
        let entry = self.get_mut(slot);
        assert!(entry.stage != Stage::Free, "slot {slot} is freed twice");
        entry.stage = Stage::Free;
        self.free.push(slot);
    }

    /// A slot we gave out ourselves.
    pub(super) fn get_mut(&mut self, slot: u16) -> &mut Slot {
        &mut self.table[slot as usize]
    }

    /// A slot whose command waits for its answer.
    pub(super) fn open_mut(&mut self, slot: u16) -> &mut Slot {
        let entry = &mut self.table[slot as usize];
        assert!(
            entry.stage == Stage::Open,
            "slot {slot} is {:?}, not open",
            entry.stage
        );
        entry
    }

    /// The slot of a transfer tag off the wire, if that tag is one that was given.
    pub(super) fn transfer(&self, tag: u16) -> Option<&Slot> {
        let entry = self.table.get(tag as usize)?;
        (entry.stage != Stage::Free && entry.requested > 0).then_some(entry)
    }
}
