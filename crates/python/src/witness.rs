//! What a reader's lease holds, shown to other processes of this machine.
//!
//! A record in memory that has a descriptor, which children find through the process that made it (`/proc`), whether they were forked or
//! spawned. It says which generation is held and until when; the clock is the machine's. A process that is gone, a descriptor that is another
//! file by now, and a record that is another's prove nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use foundation::Instant;
use packfs::Witness;
use reactor::time::now;

/// Length of what tells records apart, in bytes.
const NONCE_BYTES: usize = 16;
/// Generation, end, nonce, and a sum over them.
const RECORD_BYTES: usize = 8 + 8 + NONCE_BYTES + 8;
/// A record that is written just now is looked at again so often.
const LOOKS_MAX: usize = 100;

/// A sum by which a half written record is told apart.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn encode(generation: u64, until: u64, nonce: &[u8; NONCE_BYTES]) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&generation.to_le_bytes());
    record[8..16].copy_from_slice(&until.to_le_bytes());
    record[16..16 + NONCE_BYTES].copy_from_slice(nonce);
    let sum = sum(&record[..RECORD_BYTES - 8]);
    record[RECORD_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    record
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The clock that ends are told by: processes in other time namespaces have another.
fn clock() -> String {
    let clock = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    clock.to_string_lossy().into_owned()
}

/// The record of one reader's lease. See the module.
pub(crate) struct Shown {
    record: File,
    nonce: [u8; NONCE_BYTES],
}

impl Shown {
    /// One that says that nothing is held.
    ///
    /// # Errors
    /// There is no memory or no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        let mut nonce = [0; NONCE_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut nonce)?;
        let record: File = rustix::fs::memfd_create("redhare-lease", rustix::fs::MemfdFlags::CLOEXEC)?.into();
        let shown = Self { record, nonce };
        shown.tell(0, Instant::from_nanos(0))?;
        Ok(shown)
    }

    /// Where other processes find it.
    pub(crate) fn place(&self) -> String {
        let nonce: String = self.nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        let (process, descriptor) = (std::process::id(), self.record.as_raw_fd());
        format!("{process} {descriptor} {nonce} {}", clock())
    }
}

impl Witness for Shown {
    fn tell(&self, generation: u64, until: Instant) -> io::Result<()> {
        self.record
            .write_all_at(&encode(generation, until.as_nanos(), &self.nonce), 0)
    }
}

/// Whether the record at a place says that a generation is held now. On a reactor.
pub(crate) fn is_held(place: &str, generation: u64) -> bool {
    look(place).is_some_and(|(lowest, until)| lowest <= generation && until > now())
}

fn look(place: &str) -> Option<(u64, Instant)> {
    let mut parts = place.splitn(4, ' ');
    let mut part = || parts.next();
    let (process, descriptor, nonce) = (part()?, part()?, part()?);
    if part()? != clock() {
        return None;
    }
    let (process, descriptor): (u32, u32) = (process.parse().ok()?, descriptor.parse().ok()?);
    // It may be another file by now, also one whose opening would wait.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(format!("/proc/{process}/fd/{descriptor}"))
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    for _ in 0..LOOKS_MAX {
        let mut record = [0; RECORD_BYTES];
        file.read_exact_at(&mut record, 0).ok()?;
        let (said, own) = record.split_at(RECORD_BYTES - 8);
        if number(own) != sum(said) {
            continue;
        }
        let found: String = said[16..].iter().map(|byte| format!("{byte:02x}")).collect();
        return (found == nonce).then(|| (number(&said[..8]), Instant::from_nanos(number(&said[8..16]))));
    }
    None
}
