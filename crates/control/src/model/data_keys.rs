//! The keys that the data path rests on (`docs/decisions/0089`).

use zeroize::Zeroizing;

use crate::record::{Reader, Record, Writer};

/// Length of a key, in bytes.
pub const DATA_KEY_BYTES: usize = 32;
/// Keys of a record: the one before, the one in use, the next.
const KEYS_MAX: usize = 3;

/// The bytes of a key: in no Debug output, and zeroed when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct DataSecret(Zeroizing<[u8; DATA_KEY_BYTES]>);

impl DataSecret {
    /// Takes random bytes.
    pub fn new(bytes: [u8; DATA_KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; DATA_KEY_BYTES] {
        &self.0
    }
}

impl std::fmt::Debug for DataSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DataSecret(..)")
    }
}

/// The cluster's keys of the data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataKeys {
    /// By number, ascending: the one before that in use if there was one, the one in use, and the next.
    pub keys: Vec<(u64, DataSecret)>,
    /// The number of the one that secrets are made with now. All are believed.
    pub current: u64,
    /// When that came into use, in milliseconds of Unix time.
    pub turned_unix_ms: u64,
    /// Since when nodes are to refuse who does not prove itself, in milliseconds of Unix time; 0 while they are not.
    pub required_unix_ms: u64,
}

impl DataKeys {
    /// The first keys of a cluster.
    pub(crate) fn first([current, next]: [DataSecret; 2], unix_ms: u64, required_unix_ms: u64) -> Self {
        Self {
            keys: vec![(1, current), (2, next)],
            current: 1,
            turned_unix_ms: unix_ms,
            required_unix_ms,
        }
    }

    /// The next key comes into use, and `fresh` is the next.
    pub(crate) fn turned(&self, fresh: DataSecret, unix_ms: u64) -> Self {
        let newest = self.keys.last().map_or(self.current, |(number, _)| *number);
        let mut keys = self.keys.clone();
        keys.retain(|(number, _)| *number >= self.current);
        keys.push((newest + 1, fresh));
        Self {
            keys,
            current: newest,
            turned_unix_ms: unix_ms,
            required_unix_ms: self.required_unix_ms,
        }
    }

    /// The key that secrets are made with now.
    pub fn current(&self) -> Option<&DataSecret> {
        let found = self.keys.iter().find(|(number, _)| *number == self.current);
        found.map(|(_, secret)| secret)
    }
}

impl Record for DataKeys {
    const KIND: u8 = 17;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.u64(self.current);
        out.u64(self.turned_unix_ms);
        out.u64(self.required_unix_ms);
        out.count(self.keys.len());
        for (number, secret) in &self.keys {
            out.u64(*number);
            for bytes in secret.0.chunks_exact(8) {
                out.u64(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (current, turned_unix_ms, required_unix_ms) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let keys = reader.list(8 + DATA_KEY_BYTES, |reader| {
            let number = reader.u64()?;
            let mut secret = Zeroizing::new([0; DATA_KEY_BYTES]);
            for bytes in secret.chunks_exact_mut(8) {
                bytes.copy_from_slice(&reader.u64()?.to_le_bytes());
            }
            Some((number, DataSecret(secret)))
        })?;
        let ascends = keys.is_sorted_by(|(one, _), (other, _)| one < other);
        let is_whole = (2..=KEYS_MAX).contains(&keys.len())
            && keys[..keys.len() - 1]
                .iter()
                .any(|(number, _)| *number == current);
        (ascends && is_whole && keys[0].0 > 0).then_some(Self {
            keys,
            current,
            turned_unix_ms,
            required_unix_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> DataSecret {
        DataSecret::new([byte; DATA_KEY_BYTES])
    }

    #[test]
    fn a_key_is_believed_a_turn_before_it_is_used_and_a_turn_after() {
        let first = DataKeys::first([secret(1), secret(2)], 10, 1);
        assert_eq!(first.current(), Some(&secret(1)));
        let second = first.turned(secret(3), 20);
        assert_eq!((second.current, second.current()), (2, Some(&secret(2))));
        let numbers = |keys: &DataKeys| keys.keys.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        assert_eq!(numbers(&second), [1, 2, 3]);
        let third = second.turned(secret(4), 30);
        assert_eq!((numbers(&third), third.current), (vec![2, 3, 4], 3));
        assert_eq!((third.turned_unix_ms, third.required_unix_ms), (30, 1));
        for keys in [first, second, third] {
            let bytes = keys.encode(b"k");
            assert_eq!(DataKeys::decode(b"k", &bytes).unwrap(), keys);
            let shown = format!("{keys:?}");
            assert!(
                shown.contains("(1, DataSecret(..))") != shown.contains("(4, DataSecret(..))"),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_record_that_contradicts_itself_is_refused() {
        let good = DataKeys::first([secret(1), secret(2)], 10, 0);
        let refused = |change: &dyn Fn(&mut DataKeys)| {
            let mut bad = good.clone();
            change(&mut bad);
            DataKeys::decode(b"k", &bad.encode(b"k")).is_err()
        };
        assert!(!refused(&|_| {}));
        assert!(refused(&|keys| keys.current = 3));
        assert!(refused(&|keys| keys.current = 2), "none is next");
        assert!(refused(&|keys| keys.keys.reverse()));
        assert!(refused(&|keys| keys.keys.truncate(1)));
        assert!(refused(&|keys| keys.keys[0].0 = 0));
    }
}
