//! Encoding, damage, and a loss of power before each step of a change.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use proptest::prelude::*;
use protocols::nvme::reservation::{AcquireAction, ChangePersistence, RegisterAction};

use super::super::state::Change;
use super::*;

const UUID: [u8; 16] = [9; 16];

/// Hosts 1 to `hosts` are registered; the first holds a reservation.
fn state(hosts: u8, kind: ReservationType) -> Reservations {
    let mut state = Reservations::default();
    for number in 1..=hosts {
        let change = Change::Register {
            action: RegisterAction::Register,
            ignore_existing_key: false,
            current: 0,
            new: number.into(),
            persistence: ChangePersistence::Persist,
        };
        state.apply(&[number; 16], &change, true).unwrap();
    }
    let change = Change::Acquire {
        action: AcquireAction::Acquire,
        kind,
        current: 1,
        preempt: 0,
    };
    state.apply(&[1; 16], &change, true).unwrap();
    // A power cycle sets the generation back.
    state.generation = 0;
    state
}

#[test]
fn the_bytes_are_those_of_the_table() {
    let document = include_str!("../../../../../docs/formats/reservation.md");
    let state = state(2, ReservationType::ExclusiveAccess);
    let bytes = encode(&state, &UUID);
    assert_eq!(&bytes[..8], b"RHRESERV");
    assert_eq!(bytes[8..16], [1, 0, 2, 1, 2, 0, 0, 0]);
    assert_eq!((&bytes[16..32], &bytes[32..48]), (&UUID[..], &[1; 16][..]));
    assert_eq!((&bytes[48..64], bytes[64]), (&[1; 16][..], 1));
    assert_eq!((&bytes[72..88], bytes[88]), (&[2; 16][..], 2));
    assert_eq!(bytes[96..], crc32c(&bytes[..96]).to_le_bytes());
    for (offset, length, field) in [
        ("0", "8", "magic"),
        ("8", "2", "version"),
        ("10", "1", "type"),
        ("11", "1", "persistent"),
        ("12", "4", "registrants"),
        ("16", "16", "namespace"),
        ("32", "16", "holder"),
        ("48", "24 n", "entries"),
        ("48 + 24 n", "4", "checksum"),
    ] {
        let row = format!("| {offset} | {length} | {field} |");
        assert!(document.contains(&row), "no row '{row}'");
    }
}

#[test]
fn every_state_comes_back_and_what_does_not_persist_is_nothing() {
    for kind in ReservationType::ALL {
        for hosts in 1..5 {
            let mut state = state(hosts, *kind);
            assert_eq!(decode(&encode(&state, &UUID)), Ok((state.clone(), UUID)));
            state.persistent = false;
            assert_eq!(
                decode(&encode(&state, &UUID)),
                Ok((Reservations::default(), UUID))
            );
        }
    }
}

#[test]
fn one_changed_bit_or_missing_byte_is_noticed() {
    let bytes = encode(&state(3, ReservationType::WriteExclusiveAll), &UUID);
    for index in 0..bytes.len() {
        assert!(decode(&bytes[..index]).is_err(), "{index} bytes");
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[index] ^= 1 << bit;
            assert!(decode(&changed).is_err(), "bit {bit} of byte {index}");
        }
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(decode(&longer).is_err());
}

/// Bytes with a right checksum.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - CHECKSUM_BYTES;
    let checksum = crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
    bytes
}

#[test]
fn content_that_cannot_be_is_refused_though_its_checksum_is_right() {
    let good = encode(&state(2, ReservationType::ExclusiveAccess), &UUID);
    for (offset, value) in [
        (8, 2),
        (10, 7),
        (10, 0),
        (10, 5),
        (11, 0),
        (11, 2),
        (32, 7),
        (48, 9),
        (64, 0),
    ] {
        let mut bytes = good.clone();
        bytes[offset] = value;
        let decoded = decode(&sealed(bytes));
        assert!(decoded.is_err(), "byte {offset} as {value}: {decoded:?}");
    }
}

proptest! {
    #[test]
    fn noise_never_panics(mut noise in prop::collection::vec(any::<u8>(), 0..300), seal: bool) {
        if noise.len() >= HEADER_BYTES + CHECKSUM_BYTES {
            noise[..8].copy_from_slice(MAGIC);
            noise[8..10].copy_from_slice(&[1, 0]);
        }
        let noise = if seal && noise.len() > CHECKSUM_BYTES { sealed(noise) } else { noise };
        let _ = decode(&noise);
    }
}

/// A disk that loses power before a chosen step. Content that was not synced may be anything then, and a name that
/// was not synced may be there or not.
#[derive(Default)]
struct FailingDisk {
    steps_left: Cell<usize>,
    /// Content, and whether it is durable.
    files: RefCell<Vec<(Vec<u8>, bool)>>,
    names: RefCell<BTreeMap<PathBuf, usize>>,
    durable_names: RefCell<BTreeMap<PathBuf, usize>>,
}

impl FailingDisk {
    fn step(&self) -> io::Result<()> {
        let left = self.steps_left.get();
        self.steps_left.set(left.saturating_sub(1));
        if left == 0 {
            return Err(io::Error::other("power is gone"));
        }
        Ok(())
    }

    /// What is read after power has come back.
    fn after(&self, path: &Path, names_kept: bool, content_kept: usize) -> Vec<u8> {
        let names = if names_kept {
            &self.names
        } else {
            &self.durable_names
        };
        let files = self.files.borrow();
        let (bytes, durable) = &files[names.borrow()[path]];
        let kept = if *durable {
            bytes.len()
        } else {
            content_kept.min(bytes.len())
        };
        bytes[..kept].to_vec()
    }
}

impl Disk for FailingDisk {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        let mut files = self.files.borrow_mut();
        files.push((bytes.to_vec(), false));
        self.names.borrow_mut().insert(path.to_owned(), files.len() - 1);
        Ok(())
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.files.borrow_mut()[self.names.borrow()[path]].1 = true;
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        let mut names = self.names.borrow_mut();
        let file = names.remove(from).unwrap();
        names.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_directory(&self, _path: &Path) -> io::Result<()> {
        self.step()?;
        *self.durable_names.borrow_mut() = self.names.borrow().clone();
        Ok(())
    }
}

#[test]
fn power_lost_at_any_step_leaves_one_state_or_the_next() {
    const STEPS: usize = 4;
    let path = Path::new("/somewhere/reservations");
    let old = state(2, ReservationType::WriteExclusive);
    let new = state(3, ReservationType::ExclusiveAccess);
    let (mut saw_old, mut saw_new) = (0, 0);
    for steps in 0..=STEPS {
        for names_kept in [false, true] {
            for content_kept in [0, 20, usize::MAX] {
                let disk = FailingDisk::default();
                disk.steps_left.set(STEPS);
                save(&disk, path, &encode(&old, &UUID)).unwrap();
                disk.steps_left.set(steps);
                let saved = save(&disk, path, &encode(&new, &UUID));
                assert_eq!(saved.is_ok(), steps == STEPS);
                let (found, _) = decode(&disk.after(path, names_kept, content_kept)).unwrap();
                assert!(found == old || found == new, "lost before step {steps}");
                assert!(found == new || saved.is_err(), "an answered change is there");
                saw_old += usize::from(found == old);
                saw_new += usize::from(found == new);
            }
        }
    }
    assert!(saw_old > 0 && saw_new > 0);
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("redhare-reservations-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory).unwrap();
    directory
}

#[test]
fn a_file_is_made_locked_and_read_again() {
    let directory = directory("file");
    let path = directory.join("ns1");
    let file = ReservationFile::open(&path, UUID).unwrap();
    assert_eq!(*file.restored(), Reservations::default());
    let error = ReservationFile::open(&path, UUID).unwrap_err().to_string();
    assert!(error.contains("another namespace or process holds"), "{error}");
    let kept = state(3, ReservationType::WriteExclusiveRegistrants);
    save(&SystemDisk, &path, &encode(&kept, &UUID)).unwrap();
    drop(file);
    // What a change left behind that lost power is overwritten, and not looked at.
    std::fs::write(directory.join("ns1.new"), b"half").unwrap();
    let file = ReservationFile::open(&path, UUID).unwrap();
    assert_eq!(*file.restored(), kept);
    drop(file);
    let error = ReservationFile::open(&path, [1; 16]).unwrap_err().to_string();
    assert!(error.contains("belong to namespace 09090909-"), "{error}");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[50] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = ReservationFile::open(&path, UUID).unwrap_err().to_string();
    assert!(error.contains("are damaged: its checksum is"), "{error}");
    assert!(error.contains("remove it, which releases all"), "{error}");
    std::fs::write(&path, vec![0; LENGTH_MAX + 1]).unwrap();
    assert!(
        ReservationFile::open(&path, UUID)
            .unwrap_err()
            .to_string()
            .contains("bytes where")
    );
    let error = ReservationFile::open(&directory.join("none/ns1"), UUID)
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot open"), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
}
