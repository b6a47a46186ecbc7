//! The licences of everything we depend on, against a list of those we accept.
//!
//! A licence is an SPDX expression (SPDX specification 2.3, annex D): identifiers joined by `AND`,
//! `OR` and `WITH`, `AND` binding tighter than `OR`. Old manifests write `/` for `OR`.

use crate::metadata::Metadata;

/// Licences under which code may become part of a program under Apache-2.0.
const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

/// Every package whose licence is not accepted, as text for a person.
pub(crate) fn violations(metadata: &Metadata) -> Vec<String> {
    let mut found = Vec::new();
    for package in metadata.foreign() {
        let name = format!("{} {}", package.name, package.version);
        let remedy = "replace the crate, or add the licence to ACCEPTED in xtask/src/licences.rs if Apache-2.0 allows it";
        match package.licence.as_deref() {
            None => found.push(format!("{name} states no licence; {remedy}")),
            Some(expression) => match is_accepted(expression) {
                Ok(true) => {}
                Ok(false) => found.push(format!(
                    "{name} has licence '{expression}', which is not accepted; {remedy}"
                )),
                Err(why) => found.push(format!(
                    "{name} has licence '{expression}', which cannot be read: {why}; {remedy}"
                )),
            },
        }
    }
    found
}

/// Whether we may choose among the expression's licences so that all that remain are accepted.
fn is_accepted(expression: &str) -> Result<bool, String> {
    let words = words(expression);
    let mut parser = Parser { words: &words, at: 0 };
    let accepted = parser.any()?;
    match parser.peek() {
        None => Ok(accepted),
        Some(word) => Err(format!("'{word}' is out of place")),
    }
}

fn words(expression: &str) -> Vec<String> {
    let mut spaced = String::with_capacity(expression.len() * 2);
    for character in expression.chars() {
        match character {
            '(' | ')' => spaced.extend([' ', character, ' ']),
            '/' => spaced.push_str(" OR "),
            other => spaced.push(other),
        }
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

struct Parser<'a> {
    words: &'a [String],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(String::as_str)
    }

    fn take(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        self.at += usize::from(is_next);
        is_next
    }

    fn any(&mut self) -> Result<bool, String> {
        let mut accepted = self.all()?;
        while self.take("OR") {
            accepted |= self.all()?;
        }
        Ok(accepted)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut accepted = self.one()?;
        while self.take("AND") {
            accepted &= self.one()?;
        }
        Ok(accepted)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let accepted = self.any()?;
            return if self.take(")") {
                Ok(accepted)
            } else {
                Err("a parenthesis is not closed".to_owned())
            };
        }
        let mut licence = self.identifier()?;
        if self.take("WITH") {
            licence = format!("{licence} WITH {}", self.identifier()?);
        }
        Ok(ACCEPTED.contains(&licence.as_str()))
    }

    fn identifier(&mut self) -> Result<String, String> {
        match self.peek() {
            None => Err("it ends where a licence should stand".to_owned()),
            Some(word @ ("AND" | "OR" | "WITH" | "(" | ")")) => {
                Err(format!("'{word}' stands where a licence should"))
            }
            Some(word) => {
                let word = word.to_owned();
                self.at += 1;
                Ok(word)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    #[test]
    fn expressions_are_read_as_spdx_says() {
        for accepted in [
            "MIT",
            "MIT/Apache-2.0",
            "MIT OR GPL-3.0-only",
            "GPL-3.0-only/MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "GPL-2.0-only AND ISC OR MIT",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only",
        ] {
            assert_eq!(is_accepted(accepted), Ok(true), "{accepted}");
        }
        for refused in [
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "MIT AND (GPL-2.0-only OR LGPL-2.1-only)",
            "mit-ish",
            "MIT WITH GCC-exception-3.1",
        ] {
            assert_eq!(is_accepted(refused), Ok(false), "{refused}");
        }
        for broken in [
            "",
            "MIT OR",
            "AND MIT",
            "(MIT",
            "MIT)",
            "MIT Apache-2.0",
            "MIT WITH",
        ] {
            assert!(is_accepted(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_violation_names_crate_version_and_licence() {
        let mut metadata = Metadata::default();
        for (name, licence) in [
            ("good", Some("MIT")),
            ("bad", Some("AGPL-3.0-only")),
            ("silent", None),
        ] {
            let package = Package {
                name: name.to_owned(),
                version: "1.2.3".to_owned(),
                licence: licence.map(str::to_owned),
                ..Package::default()
            };
            metadata.packages.insert(name.to_owned(), package);
        }
        let found = violations(&metadata);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("bad 1.2.3 has licence 'AGPL-3.0-only', which is not accepted; replace")
        );
        assert!(found[1].starts_with("silent 1.2.3 states no licence; replace"));
    }
}
