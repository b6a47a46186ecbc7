//! Who may write a volume, and who reads what of it. No times stand in the store: a lease has
//! ended when a master has seen its record unchanged for a whole term on its own clock.

use std::time::Duration;

use crate::identity::{SessionId, WriterToken};
use crate::record::{Reader, Record, Writer};

/// The last write lease of a volume. It stays when given back, for its token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WriterLease {
    /// Above every token before; nodes refuse writes under older ones.
    pub token: WriterToken,
    /// The holder's session; none when the lease was given back.
    pub session: Option<SessionId>,
    /// Who it is, for people.
    pub holder: String,
    /// How long it lasts from each renewal, in whole milliseconds.
    pub term: Duration,
}

/// A reader's lease on one generation of a volume's content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReaderLease {
    /// Who it is, for people.
    pub holder: String,
    /// What it reads; never goes back.
    pub generation: u64,
}

impl Record for WriterLease {
    const KIND: u8 = 6;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.u64(self.token.0);
        out.uuid(self.session.map_or_else(Default::default, |session| session.0));
        out.text(&self.holder);
        out.u64(u64::try_from(self.term.as_millis()).unwrap_or(u64::MAX));
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            token: WriterToken(reader.u64()?),
            session: match reader.uuid()? {
                none if none == Default::default() => None,
                session => Some(SessionId(session)),
            },
            holder: reader.text()?,
            term: Duration::from_millis(reader.u64()?),
        })
    }
}

impl Record for ReaderLease {
    const KIND: u8 = 7;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.text(&self.holder);
        out.u64(self.generation);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            holder: reader.text()?,
            generation: reader.u64()?,
        })
    }
}
