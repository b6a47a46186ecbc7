//! Just enough of Rust's lexical structure to tell code from comments and strings.

/// The text with every character of a comment, string or character literal replaced by a blank.
/// Line breaks stay, so line numbers agree with the original.
pub(crate) fn code_only(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < characters.len() {
        let end = match characters[at] {
            '/' if characters.get(at + 1) == Some(&'/') => end_of_line(&characters, at),
            '/' if characters.get(at + 1) == Some(&'*') => end_of_block_comment(&characters, at),
            '"' => end_of_string(&characters, at),
            'r' | 'b' | 'c' if !continues_word(&characters, at) => end_of_prefixed(&characters, at),
            '\'' => end_of_character(&characters, at),
            _ => at,
        };
        if end == at {
            code.push(characters[at]);
            at += 1;
        } else {
            code.extend(
                characters[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    code
}

/// Whether the code has that word, not as part of a longer one.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn continues_word(characters: &[char], at: usize) -> bool {
    at > 0 && is_word(characters[at - 1])
}

fn end_of_line(characters: &[char], start: usize) -> usize {
    characters[start..]
        .iter()
        .position(|&c| c == '\n')
        .map_or(characters.len(), |length| start + length)
}

fn end_of_block_comment(characters: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < characters.len() {
        match (characters[at], characters.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(characters.len())
}

/// `start` is at the opening quote; a backslash hides the next character.
fn end_of_string(characters: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < characters.len() {
        match characters[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    characters.len()
}

/// Literals with a prefix: `b".."`, `c".."`, `b'.'`, `r".."`, `r#".."#`, `br`, `cr`. Returns `start`
/// when it is a plain word (or a raw identifier).
fn end_of_prefixed(characters: &[char], start: usize) -> usize {
    let mut at = start;
    if matches!(characters[at], 'b' | 'c') {
        at += 1;
    }
    if characters.get(at) == Some(&'r') {
        let hashes = characters[at + 1..].iter().take_while(|&&c| c == '#').count();
        if characters.get(at + 1 + hashes) != Some(&'"') {
            return start;
        }
        return end_of_raw_string(characters, at + 2 + hashes, hashes);
    }
    match characters.get(at) {
        Some('"') if at > start => end_of_string(characters, at),
        Some('\'') if at > start => end_of_character(characters, at),
        _ => start,
    }
}

fn end_of_raw_string(characters: &[char], body: usize, hashes: usize) -> usize {
    let closes = |at: usize| {
        characters[at] == '"'
            && characters[at + 1..]
                .iter()
                .take(hashes)
                .filter(|&&c| c == '#')
                .count()
                == hashes
    };
    (body..characters.len())
        .find(|&at| closes(at))
        .map_or(characters.len(), |at| at + 1 + hashes)
}

/// `start` is at a quote, which opens a character literal or a lifetime. Returns `start` for the
/// latter.
fn end_of_character(characters: &[char], start: usize) -> usize {
    match (characters.get(start + 1), characters.get(start + 2)) {
        (Some('\\'), _) => {
            // Past the escaped character, which may itself be a quote.
            let tail = characters.get(start + 3..).unwrap_or(&[]);
            tail.iter()
                .position(|&c| c == '\'')
                .map_or(characters.len(), |length| start + 3 + length + 1)
        }
        (Some(_), Some('\'')) => start + 3,
        _ => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_left(text: &str) -> Vec<String> {
        let code = code_only(text);
        assert_eq!(code.chars().count(), text.chars().count());
        assert_eq!(code.lines().count(), text.lines().count());
        code.split(|c| !is_word(c))
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        assert_eq!(
            words_left("a // unsafe\nb /* unsafe /* x */ y */ c"),
            ["a", "b", "c"]
        );
        assert_eq!(words_left(r#"f("unsafe \" x", b"y", c"z") + g"#), ["f", "g"]);
        assert_eq!(words_left("f(r#\"un\"safe\"#, br\"x\", r\"\\\") g"), ["f", "g"]);
        assert_eq!(
            words_left(r"f('x', '\'', '\\', b'\n', '\u{1F600}') g"),
            ["f", "g"]
        );
        assert_eq!(words_left("f(\"one\ntwo\") g"), ["f", "g"]);
    }

    #[test]
    fn lifetimes_and_words_that_begin_like_prefixes_stay() {
        assert_eq!(
            words_left("fn f<'a>(x: &'a str) 'b: loop"),
            ["fn", "f", "a", "x", "a", "str", "b", "loop"]
        );
        assert_eq!(
            words_left("bar rust r#type b r c"),
            ["bar", "rust", "r", "type", "b", "r", "c"]
        );
    }

    #[test]
    fn what_is_not_closed_ends_with_the_text() {
        for text in ["\"abc", "/* abc", "r#\"abc\"", "'\\", "b'\\", "\"\\", "'"] {
            code_only(text);
        }
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("x = unsafe { y }", "unsafe"));
        assert!(has_word("unsafe", "unsafe"));
        assert!(!has_word("unsafe_op_in_unsafe_fn", "unsafe"));
        assert!(!has_word("myunsafe", "unsafe"));
    }
}
