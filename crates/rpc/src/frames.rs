//! Cuts a stream of bytes into JSON values. Clients send one after the other, with or without blanks between.

/// No request is longer than this, in bytes.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Objects and arrays within each other, at most: serde_json's own limit is 128.
const DEPTH_MAX: usize = 100;

/// Why a stream cannot be cut any further. What follows in it cannot be found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramesError {
    /// A request is an object or, for a batch, an array.
    #[error("expected a request, which begins with '{{' or '[', and found byte {byte:#04x}")]
    NotARequest {
        /// What was found.
        byte: u8,
    },
    /// See [`REQUEST_BYTES_MAX`].
    #[error("a request is longer than {REQUEST_BYTES_MAX} bytes")]
    TooLong,
    /// Too many brackets are open.
    #[error("a request has more than {DEPTH_MAX} objects and arrays within each other")]
    TooDeep,
    /// A bracket closes what is not open.
    #[error("a request has a ']' or '}}' too many")]
    Unbalanced,
}

/// The cutter of one stream. Each byte is looked at once, however it arrives.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// How much of `bytes` has been looked at.
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Frames {
    /// Takes in what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole value, whose brackets match and which may still be wrong inside; `None` if it has not all
    /// arrived.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, FramesError> {
        if self.depth == 0 {
            let blanks = self
                .bytes
                .iter()
                .take_while(|byte| byte.is_ascii_whitespace())
                .count();
            self.bytes.drain(..blanks);
            self.scanned = 0;
        }
        while let Some(&byte) = self.bytes.get(self.scanned) {
            if self.scanned >= REQUEST_BYTES_MAX {
                return Err(FramesError::TooLong);
            }
            self.scanned += 1;
            if self.look_at(byte)? {
                let rest = self.bytes.split_off(self.scanned);
                self.scanned = 0;
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
        }
        Ok(None)
    }

    /// True if the byte ends a value.
    fn look_at(&mut self, byte: u8) -> Result<bool, FramesError> {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return Ok(false);
        }
        match byte {
            b'{' | b'[' if self.depth >= DEPTH_MAX => return Err(FramesError::TooDeep),
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.checked_sub(1).ok_or(FramesError::Unbalanced)?;
                return Ok(self.depth == 0);
            }
            _ if self.depth == 0 => return Err(FramesError::NotARequest { byte }),
            b'"' => self.in_string = true,
            _ => {}
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(frames: &mut Frames) -> Vec<String> {
        std::iter::from_fn(|| frames.take().unwrap())
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .collect()
    }

    #[test]
    fn values_are_cut_with_and_without_blanks_between_them() {
        let mut frames = Frames::default();
        frames.push(b" {\"a\": [1, {}]}{\"b\":\"}\\\"]\"}\n\n[{}] {");
        assert_eq!(
            all(&mut frames),
            ["{\"a\": [1, {}]}", "{\"b\":\"}\\\"]\"}", "[{}]"]
        );
        frames.push(b"}");
        assert_eq!(all(&mut frames), ["{}"]);
    }

    #[test]
    fn what_is_no_request_is_refused_with_the_byte() {
        let mut frames = Frames::default();
        frames.push(b"\n GET / HTTP/1.1\r\n");
        assert_eq!(frames.take(), Err(FramesError::NotARequest { byte: b'G' }));
        let mut frames = Frames::default();
        frames.push(b"]");
        assert_eq!(frames.take(), Err(FramesError::Unbalanced));
    }

    #[test]
    fn neither_length_nor_depth_is_without_limit() {
        let mut frames = Frames::default();
        frames.push(b"[\"");
        frames.push(&vec![b'x'; REQUEST_BYTES_MAX]);
        assert_eq!(frames.take(), Err(FramesError::TooLong));
        let mut frames = Frames::default();
        frames.push(&[b'['; DEPTH_MAX + 1]);
        assert_eq!(frames.take(), Err(FramesError::TooDeep));
    }

    proptest! {
        #[test]
        fn noise_never_panics(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20)) {
            let mut frames = Frames::default();
            for piece in pieces {
                frames.push(&piece);
                while let Ok(Some(_)) = frames.take() {}
            }
        }

        #[test]
        fn how_the_bytes_arrive_changes_nothing(cuts in proptest::collection::vec(1_usize..9, 1..60)) {
            let text = br#"{"jsonrpc":"2.0","method":"x","params":{"a":"\\\"{"},"id":1} [{"id":2},[]]{}"#;
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            let mut left = &text[..];
            for cut in cuts.into_iter().cycle() {
                if left.is_empty() { break; }
                let (now, later) = left.split_at(cut.min(left.len()));
                frames.push(now);
                left = later;
                seen.extend(all(&mut frames));
            }
            prop_assert_eq!(seen.len(), 3);
        }
    }
}
