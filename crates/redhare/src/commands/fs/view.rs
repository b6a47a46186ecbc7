//! What an inode looks like to people and to machines.

use packfs::{Inode, Kind, Timestamp};

/// An inode for output.
#[derive(serde::Serialize)]
pub(super) struct InodeView {
    pub(super) path: String,
    pub(super) kind: &'static str,
    pub(super) inode: u64,
    pub(super) mode: String,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size_bytes: u64,
    pub(super) mtime: String,
    pub(super) atime: String,
    pub(super) ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
}

impl InodeView {
    pub(super) fn new(path: String, inode: &Inode, target: Option<String>) -> Self {
        let attributes = &inode.attributes;
        Self {
            path,
            kind: kind(inode.kind),
            inode: inode.number.0,
            mode: format!("{:04o}", attributes.mode),
            links: inode.links,
            uid: attributes.uid,
            gid: attributes.gid,
            size_bytes: inode.size,
            mtime: time(attributes.mtime),
            atime: time(attributes.atime),
            ctime: time(attributes.ctime),
            target,
        }
    }
}

/// A kind in a word.
pub(super) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        Kind::Pipe => "pipe",
        Kind::Socket => "socket",
        Kind::CharacterDevice => "character device",
        Kind::BlockDevice => "block device",
    }
}

/// `-rwxr-xr-x`, with s and t as ls has them.
pub(super) fn mode(kind: Kind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::Pipe => 'p',
        Kind::Socket => 's',
        Kind::CharacterDevice => 'c',
        Kind::BlockDevice => 'b',
    });
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift & 7;
        text.push(if bits & 4 > 0 { 'r' } else { '-' });
        text.push(if bits & 2 > 0 { 'w' } else { '-' });
        text.push(match (bits & 1 > 0, mode & special > 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// RFC 3339 in UTC, to the nanosecond.
pub(crate) fn time(time: Timestamp) -> String {
    let (days, second) = (time.seconds.div_euclid(86_400), time.seconds.rem_euclid(86_400));
    // Days are counted in eras of 400 years from 0000-03-01, so that leap days end years.
    let days = days.saturating_add(719_468);
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z",
        day - (153 * shifted + 2) / 5 + 1,
        second / 3600,
        second / 60 % 60,
        second % 60,
        time.nanoseconds
    )
}

/// A UUID with its dashes.
pub(super) fn uuid(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000007Z"),
            (-1, "1969-12-31T23:59:59.000000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000000007Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000007Z"),
        ] {
            let nanoseconds = 7;
            assert_eq!(time(Timestamp { seconds, nanoseconds }), text);
        }
    }

    #[test]
    fn modes_are_as_ls_prints_them() {
        assert_eq!(mode(Kind::Directory, 0o1755), "drwxr-xr-t");
        assert_eq!(mode(Kind::File, 0o4644), "-rwSr--r--");
        assert_eq!(mode(Kind::Symlink, 0o777), "lrwxrwxrwx");
    }
}
