use std::cell::Cell;

use foundation::{ByteCount, Instant};

use super::*;
use crate::memory_store::MemoryStore;
use crate::settings::Settings;
use crate::store::{Entry, Versioned};
use crate::{Controller, Disk, DiskId, Incarnation, NodeId, Uuid};

/// Fails from some commit on, as a process that is killed.
struct Dying<'a> {
    store: &'a MemoryStore,
    commits_left: Cell<u32>,
}

impl MetadataStore for Dying<'_> {
    fn revision(&self) -> Result<u64, StoreError> {
        self.store.revision()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        self.store.get(key)
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.store.range(first, end, limit)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        let left = self.commits_left.get();
        if left == 0 {
            let (store, why) = ("it".to_owned(), "killed".to_owned());
            return Err(StoreError::Unavailable { store, why });
        }
        self.commits_left.set(left - 1);
        self.store.commit(transaction)
    }

    fn operations_max(&self) -> usize {
        self.store.operations_max()
    }
}

fn open(store: MemoryStore) -> Result<Controller<MemoryStore>, ControlError> {
    Controller::open(store, Settings::default(), 1, Instant::default())
}

#[test]
fn a_store_with_what_only_later_masters_know_is_refused_by_name() {
    let store = MemoryStore::with_operations_max(3);
    let mut transaction = Transaction::new();
    let record = ClusterRecord {
        id: ClusterId(Uuid(7)),
        features: 1 << 40,
    };
    transaction.put(keys::CLUSTER.to_vec(), record.encode(keys::CLUSTER));
    store.commit(&transaction).unwrap();
    let error = open(store).unwrap_err();
    assert_eq!(error, ControlError::StoreFeatures { unknown: 1 << 40 });
    assert!(
        error
            .to_string()
            .contains("feature bits 0x10000000000); run the release that wrote it")
    );
}

/// A cluster of some nodes, and its store.
fn cluster() -> MemoryStore {
    let store = MemoryStore::with_operations_max(3);
    let mut transaction = Transaction::new();
    let record = ClusterRecord {
        id: ClusterId(Uuid(7)),
        features: 0,
    };
    transaction.put(keys::CLUSTER.to_vec(), record.encode(keys::CLUSTER));
    store.commit(&transaction).unwrap();
    for number in 1..9 {
        let key = keys::node(NodeId(Uuid(number)));
        let node = crate::Node {
            peer_address: format!("192.0.2.{number}:4420"),
            rack: None,
            incarnation: Incarnation(1),
            ended_through: Incarnation(0),
            disks: vec![Disk {
                id: DiskId(Uuid(number)),
                capacity: ByteCount(1 << 40),
                used: ByteCount(0),
                held: None,
            }],
        };
        let mut transaction = Transaction::new();
        transaction.put(key.clone(), node.encode(&key));
        store.commit(&transaction).unwrap();
    }
    store
}

#[test]
fn a_cluster_moves_and_its_old_store_is_closed() {
    let old = cluster();
    close(&old).unwrap();
    close(&old).unwrap();
    let image = export(&old).unwrap();
    assert!(image.moved);
    assert_eq!(image.counts(), [8, 0, 0]);
    let image = Image::decode(&image.encode()).unwrap();
    let new = MemoryStore::with_operations_max(3);
    let mut heard = Vec::new();
    import(&new, &image, |done| heard.push(done)).unwrap();
    assert_eq!(heard, [3, 6, 9]);
    let again = export(&new).unwrap();
    assert_eq!((again.records, again.moved), (image.records.clone(), false));
    let error = open(old).unwrap_err().to_string();
    assert!(error.contains("moved to another store"), "{error}");
    let controller = open(new).unwrap();
    assert_eq!(controller.cluster(), ClusterId(Uuid(7)));
    assert_eq!(controller.nodes(Instant::default()).unwrap().len(), 8);
}

#[test]
fn one_transaction_of_an_import_has_no_more_bytes_than_a_store_takes() {
    let record = |number: u8, bytes: usize| (vec![b'a', number], vec![0; bytes]);
    let records: Vec<_> = [300 << 10, 100 << 10, 200 << 10, 900 << 10, 1, 1, 1]
        .into_iter()
        .zip(1..)
        .map(|(bytes, number)| record(number, bytes))
        .collect();
    let (mut parts, mut rest) = (Vec::new(), &records[..]);
    while let Some(part) = next_part(rest, 2) {
        parts.push(part.len());
        rest = &rest[part.len()..];
    }
    // Two by their bytes, each of the large ones alone, and of the others as many as may be in one.
    assert_eq!(parts, [2, 1, 1, 2, 1]);
    assert!(next_part(&[], 2).is_none());
}

#[test]
fn an_import_that_is_broken_off_anywhere_is_no_cluster_and_can_be_repeated() {
    let old = cluster();
    close(&old).unwrap();
    let image = export(&old).unwrap();
    let mut whole = false;
    for commits in 0.. {
        let store = MemoryStore::with_operations_max(3);
        let dying = Dying {
            store: &store,
            commits_left: Cell::new(commits),
        };
        if import(&dying, &image, |_| ()).is_ok() {
            whole = true;
            break;
        }
        if commits > 0 {
            assert_eq!(
                export(&store),
                Err(TransferError::Unfinished),
                "after {commits} commits"
            );
            assert_eq!(close(&store), Err(TransferError::Unfinished));
            assert!(matches!(
                check_open(&store),
                Err(ControlError::StoreClosed { why: Closed::Filling })
            ));
        }
        import(&store, &image, |_| ()).unwrap();
        assert_eq!(
            export(&store).unwrap().records,
            image.records,
            "after {commits} commits"
        );
    }
    assert!(whole);
}

#[test]
fn a_backup_is_marked_as_such_by_its_import_and_by_what_is_exported_of_that() {
    let (first, second) = (
        MemoryStore::with_operations_max(3),
        MemoryStore::with_operations_max(3),
    );
    import(&first, &export(&cluster()).unwrap(), |_| ()).unwrap();
    close(&first).unwrap();
    let again = export(&first).unwrap();
    import(&second, &again, |_| ()).unwrap();
    let mark = Restored { revision: 9 }.encode(keys::RESTORED);
    for store in [&first, &second] {
        assert_eq!(store.get(keys::RESTORED).unwrap().unwrap().value, mark);
        let cluster = store.get(keys::CLUSTER).unwrap().unwrap();
        let cluster = ClusterRecord::decode(keys::CLUSTER, &cluster.value).unwrap();
        assert_eq!(
            cluster.features, FEATURE_RESTORED,
            "masters of before do not lead it"
        );
    }
}

#[test]
fn a_store_with_records_is_left_as_it_is() {
    let (image, other) = (export(&cluster()).unwrap(), cluster());
    let before = export(&other).unwrap();
    let error = import(&other, &image, |_| ()).unwrap_err();
    assert!(matches!(error, TransferError::Occupied { .. }), "{error}");
    close(&other).unwrap();
    let error = import(&other, &image, |_| ()).unwrap_err();
    assert!(matches!(error, TransferError::Occupied { .. }), "{error}");
    assert_eq!(export(&other).unwrap().records, before.records);
    assert_eq!(export(&MemoryStore::new()), Err(TransferError::NoCluster));
    assert_eq!(close(&MemoryStore::new()), Err(TransferError::NoCluster));
}

#[test]
fn every_changed_or_missing_byte_of_a_file_is_found() {
    let bytes = export(&cluster()).unwrap().encode();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x41;
        assert!(Image::decode(&changed).is_err(), "byte {at}");
        assert!(Image::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(Image::decode(&longer).is_err());
    let newer = [&bytes[..4], &[2, 0], &bytes[6..]].concat();
    let error = Image::decode(&newer).unwrap_err();
    assert_eq!(error, TransferError::Newer { version: 2 });
}
