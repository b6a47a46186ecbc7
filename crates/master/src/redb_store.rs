//! The store of a single master: one redb file. Its format is in `docs/formats/store.md`.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use control::{Committed, Entry, MetadataStore, Operation, StoreError, Transaction, Versioned};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use thiserror::Error;

const METADATA: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("metadata");
const REVISION: TableDefinition<'_, &[u8], u64> = TableDefinition::new("revision");
const REVISION_KEY: &[u8] = b"";
const FILE: &str = "metadata.redb";
/// redb has no limit; this bounds what one transaction keeps in memory.
const OPERATIONS_MAX: usize = 4096;
/// Most memory for pages of the file; redb would take a GiB. The chunks of a large cluster are read in order now and then, and
/// come from the system's cache as well.
const CACHE_BYTES: usize = 128 << 20;

/// A store in one redb file. Each commit is durable when it returns; a process or machine that
/// dies at any point leaves the last committed state.
///
/// redb does nothing more with a file after an I/O error, of which a full disk is one: it is opened again with the next call.
#[derive(Debug)]
pub struct RedbStore {
    /// None after an error.
    database: Mutex<Option<Database>>,
    path: PathBuf,
    /// As in the file, which nobody else writes: every heartbeat asks for it.
    revision: AtomicU64,
}

/// Why the store could not be opened.
#[derive(Debug, Error)]
pub enum OpenStoreError {
    /// Another process has it open.
    #[error(
        "the metadata store {} is open in another process; stop the master that uses it, or name another directory with --store", .path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The directory cannot be made or the file not opened.
    #[error(
        "the metadata store {} cannot be opened: {why}; check the directory's permissions and space, or restore it from a backup", .path.display()
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What the system or redb said.
        why: String,
    },
    /// A redb file of some other program.
    #[error(
        "{} is a database of another program (it has table \"{table}\"); name another directory with --store", .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// A table that is not ours.
        table: String,
    },
}

impl RedbStore {
    /// Opens the store in `directory`, making both if they are not there, for nobody else to read: the keys of the data path are in it.
    /// Only one process can have it open.
    pub fn open(directory: &Path) -> Result<Self, OpenStoreError> {
        let path = directory.join(FILE);
        make_private(directory, &path).map_err(|error| unusable(&path, error.to_string()))?;
        let database = match open(&path) {
            Ok(database) => database,
            Err(DatabaseError::DatabaseAlreadyOpen) => return Err(OpenStoreError::InUse { path }),
            Err(error) => return Err(unusable(&path, error.to_string())),
        };
        if let Some(table) = foreign_table(&database).map_err(|error| unusable(&path, error.to_string()))? {
            return Err(OpenStoreError::Foreign { path, table });
        }
        create_tables(&database).map_err(|error| unusable(&path, error.to_string()))?;
        // So that the new file's name is durable, too.
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| unusable(&path, error.to_string()))?;
        let revision = revision_of(&database).map_err(|error| unusable(&path, error.to_string()))?;
        Ok(Self {
            database: Mutex::new(Some(database)),
            path,
            revision: AtomicU64::new(revision),
        })
    }

    /// Whether there is a store in `directory`.
    pub fn is_in(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn unavailable(&self, error: impl std::fmt::Display) -> StoreError {
        StoreError::Unavailable {
            store: self.path.display().to_string(),
            why: error.to_string(),
        }
    }

    /// Uses the database, opened again if the last use of it failed: what that had committed is known then.
    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let mut place = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            let builder = &mut Database::builder();
            // Never a new one: where the file is gone, so is what was in it.
            let opened = builder.set_cache_size(CACHE_BYTES).open(&self.path);
            let database = opened.map_err(|error| self.unavailable(error))?;
            let revision = revision_of(&database).map_err(|error| self.unavailable(error))?;
            self.revision.store(revision, Ordering::Release);
            tracing::warn!(store = %self.path.display(), revision, "the metadata store is opened again");
            *place = Some(database);
        }
        let database = place.as_ref().expect("it was opened above");
        work(database).map_err(|error| {
            *place = None;
            self.unavailable(error)
        })
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&redb::ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        self.with(|database| read(&database.begin_read()?))
    }

    fn write(&self, database: &Database, transaction: &Transaction) -> Result<Committed, redb::Error> {
        let write = database.begin_write()?;
        let (previous, revision);
        {
            let mut metadata = write.open_table(METADATA)?;
            for compare in &transaction.compares {
                let stored = metadata.get(compare.key.as_slice())?;
                let found = stored.map_or(Some(0), |value| split(value.value()).map(|parts| parts.0));
                if found != Some(compare.revision) {
                    // Dropped, the transaction changes nothing.
                    return Ok(Committed::Conflict);
                }
            }
            let mut revisions = write.open_table(REVISION)?;
            previous = revisions.get(REVISION_KEY)?.map_or(0, |value| value.value());
            revision = previous + 1;
            revisions.insert(REVISION_KEY, revision)?;
            for operation in &transaction.operations {
                match operation {
                    Operation::Put { key, value } => {
                        let mut bytes = revision.to_le_bytes().to_vec();
                        bytes.extend_from_slice(value);
                        metadata.insert(key.as_slice(), bytes.as_slice())?;
                    }
                    Operation::Delete { key } => drop(metadata.remove(key.as_slice())?),
                }
            }
        }
        write.commit()?;
        self.revision.store(revision, Ordering::Release);
        Ok(Committed::At { revision, previous })
    }
}

fn unusable(path: &Path, why: String) -> OpenStoreError {
    let path = path.to_owned();
    OpenStoreError::Unusable { path, why }
}

/// Makes the directory and an empty file if they are not there. A file that others may read or write is theirs no more.
fn make_private(directory: &Path, path: &Path) -> std::io::Result<()> {
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(
            store = %path.display(),
            "others can read the metadata store, and the keys of the data path in it: it is closed to them; who has read it has the \
             keys of then"
        );
        if let Err(error) = file.set_permissions(Permissions::from_mode(0o600)) {
            tracing::error!(store = %path.display(), %error, "it cannot be closed to them: its owner has to do it");
        }
    }
    Ok(())
}

fn open(path: &Path) -> Result<Database, DatabaseError> {
    Database::builder().set_cache_size(CACHE_BYTES).create(path)
}

fn revision_of(database: &Database) -> Result<u64, redb::Error> {
    let table = database.begin_read()?.open_table(REVISION)?;
    Ok(table.get(REVISION_KEY)?.map_or(0, |value| value.value()))
}

fn foreign_table(database: &Database) -> Result<Option<String>, redb::Error> {
    let transaction = database.begin_read()?;
    let mut names = transaction.list_tables()?.map(|table| table.name().to_owned());
    Ok(names.find(|name| name != METADATA.name() && name != REVISION.name()))
}

fn create_tables(database: &Database) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    write.open_table(METADATA)?;
    write.open_table(REVISION)?;
    write.commit()?;
    Ok(())
}

/// Revision and value; `None` for bytes too short to have both.
fn split(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (revision, value) = bytes.split_at_checked(8)?;
    Some((u64::from_le_bytes(revision.try_into().ok()?), value))
}

/// What is too short comes out as revision 0 with no bytes: no record, so it is reported damaged.
fn versioned(bytes: &[u8]) -> Versioned {
    let (revision, value) = split(bytes).unwrap_or((0, &[]));
    Versioned {
        value: value.to_vec(),
        revision,
    }
}

impl MetadataStore for RedbStore {
    fn revision(&self) -> Result<u64, StoreError> {
        Ok(self.revision.load(Ordering::Acquire))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        self.read(|transaction| {
            let table = transaction.open_table(METADATA)?;
            Ok(table.get(key)?.map(|value| versioned(value.value())))
        })
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        if first >= end {
            return Ok(Vec::new());
        }
        self.read(|transaction| {
            let table = transaction.open_table(METADATA)?;
            let mut entries = Vec::new();
            for entry in table.range(first..end)?.take(limit) {
                let (key, value) = entry?;
                entries.push(Entry {
                    key: key.value().to_vec(),
                    versioned: versioned(value.value()),
                });
            }
            Ok(entries)
        })
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        if transaction.len() > OPERATIONS_MAX {
            return Err(StoreError::TooLarge {
                store: self.path.display().to_string(),
                operations: transaction.len(),
                limit: OPERATIONS_MAX,
            });
        }
        self.with(|database| self.write(database, transaction))
    }

    fn operations_max(&self) -> usize {
        OPERATIONS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Transaction {
        let mut transaction = Transaction::new();
        transaction.put(key.into(), value.into());
        transaction
    }

    #[test]
    fn nobody_else_may_read_it() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("store");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        drop(RedbStore::open(&directory).unwrap());
        let file = directory.join(FILE);
        assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));
        // One that a release before has made.
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        drop(RedbStore::open(&directory).unwrap());
        assert_eq!(mode(&file), 0o600);
    }

    #[test]
    fn it_is_opened_again_after_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let store = RedbStore::open(directory.path()).unwrap();
        store.commit(&put("a", "1")).unwrap();
        let failed = store.with(|_| Err::<(), _>(redb::Error::PreviousIo));
        assert!(failed.is_err_and(|error| error.to_string().contains("metadata.redb")));
        assert_eq!(store.get(b"a").unwrap().unwrap().value, b"1");
        let Committed::At { revision, previous } = store.commit(&put("b", "2")).unwrap() else {
            panic!("nothing is in its way");
        };
        assert_eq!((previous, revision), (1, 2));
        assert_eq!(store.revision().unwrap(), 2);
    }

    /// The same calls on redb and in memory give the same answers, over a reopening, too.
    #[test]
    fn it_behaves_as_the_store_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let memory = control::MemoryStore::with_operations_max(OPERATIONS_MAX);
        let mut random = foundation::Random::from_seed(4);
        for round in 0..3 {
            let redb = RedbStore::open(directory.path()).unwrap();
            for _ in 0..60 {
                let mut transaction = Transaction::new();
                let mut keys: Vec<u8> = (b'a'..b'h').collect();
                random.shuffle(&mut keys);
                let mut keys = keys.into_iter();
                for key in keys.by_ref().take(random.below(3) as usize) {
                    let current = memory.get(&[key]).unwrap().map_or(0, |found| found.revision);
                    let wrong = u64::from(random.chance(1, 6));
                    transaction.compare(vec![key], current + wrong);
                }
                for key in keys.take(random.below(4) as usize) {
                    if random.chance(1, 3) {
                        transaction.delete(vec![key]);
                    } else {
                        transaction.put(vec![key], vec![round; random.below(9) as usize]);
                    }
                }
                assert_eq!(redb.commit(&transaction), memory.commit(&transaction));
                let end = [b'a' + random.below(8) as u8];
                assert_eq!(redb.range(b"a", &end, 3), memory.range(b"a", &end, 3));
                assert_eq!(redb.get(&end), memory.get(&end));
                assert_eq!(redb.revision(), memory.revision());
            }
        }
    }

    #[test]
    fn a_second_process_is_told_that_the_store_is_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let first = RedbStore::open(directory.path()).unwrap();
        let error = RedbStore::open(directory.path()).unwrap_err().to_string();
        assert!(
            error.contains("metadata.redb is open in another process; stop the master"),
            "{error}"
        );
        let at = Committed::At {
            revision: 1,
            previous: 0,
        };
        assert_eq!(first.commit(&put("a", "1")), Ok(at));
        drop(first);
        assert_eq!(RedbStore::open(directory.path()).unwrap().revision(), Ok(1));
    }

    #[test]
    fn foreign_files_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        std::fs::write(&path, b"my letters".repeat(1000)).unwrap();
        let error = RedbStore::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("cannot be opened"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"my letters".repeat(1000));
    }
}
