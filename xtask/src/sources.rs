//! Rules that every Rust file of the project keeps and that no lint states.
//!
//! No file over 800 lines; `unsafe` only where [`UNSAFE_ALLOWED`] says, each time with a SAFETY
//! comment; no test switched off; nothing left to be done later.

use std::path::{Path, PathBuf};

use crate::rust_text::{code_only, has_word};

const LONGEST_FILE_LINES: usize = 800;

/// Files that may contain `unsafe`: a prefix of the path from the workspace root, and why.
const UNSAFE_ALLOWED: &[(&str, &str)] = &[
    ("crates/reactor/src/sys/", "system calls and the io_uring rings"),
    ("crates/reactor/src/sys.rs", "system calls and the io_uring rings"),
    (
        "crates/reactor/src/buffer",
        "buffers the kernel owns while an operation is in flight",
    ),
    (
        "crates/bdev/src/memory/",
        "memory that cores share as they would a disk, and that is lent to be sent",
    ),
    (
        "crates/foundation/src/cache.rs",
        "hints for the processor's cache",
    ),
    (
        "crates/protocols/src/tls/ffi.rs",
        "OpenSSL's callbacks for TLS 1.3 pre-shared keys",
    ),
    ("crates/python/src/", "the buffer protocol of Python"),
];

/// Macros that mark unfinished or left-over code.
const LEFT_OVER: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// How far above an `unsafe` its statement may begin.
const STATEMENT_LINES: usize = 6;

/// Every violation in the Rust files below `root`, as text for a person.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    let mut found = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(root.join(&path))
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        found.extend(violations_in(&path.to_string_lossy(), &text));
    }
    Ok(found)
}

/// Paths of the Rust files below `directory`, relative to `root` and in order.
fn collect(root: &Path, directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("cannot list {}: {error}", directory.display());
    // What cargo builds, wherever it was told to put it, carries this tag, unless somebody else made the directory before:
    // so `target` at the root is passed over by its name as well.
    if directory.join("CACHEDIR.TAG").exists() || directory == root.join("target") {
        return Ok(());
    }
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(cannot)? {
        entries.push(entry.map_err(cannot)?);
    }
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        // The entry's own type: a link is not followed, so a loop of links cannot hold us.
        let kind = entry.file_type().map_err(cannot)?;
        if kind.is_dir() && !is_hidden {
            collect(root, &path, files)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            files.push(
                path.strip_prefix(root)
                    .expect("listed below the root")
                    .to_path_buf(),
            );
        }
    }
    Ok(())
}

/// Every violation in one file.
fn violations_in(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > LONGEST_FILE_LINES {
        found.push(format!(
            "{path} has {} lines, at most {LONGEST_FILE_LINES} are allowed; split it by the question each part answers",
            lines.len()
        ));
    }
    let code = code_only(text);
    let code: Vec<&str> = code.lines().collect();
    let may_be_unsafe = UNSAFE_ALLOWED.iter().any(|(prefix, _)| path.starts_with(prefix));
    for (index, line) in code.iter().enumerate() {
        let place = format!("{path}:{}", index + 1);
        if has_word(line, "unsafe") {
            if !may_be_unsafe {
                found.push(format!(
                    "{place}: unsafe is not allowed in this file; use a safe interface of a module that has it, or \
                     add the file with its reason to UNSAFE_ALLOWED in xtask/src/sources.rs"
                ));
            } else if !is_justified(&lines, &code, index) {
                found.push(format!(
                    "{place}: unsafe without a comment `SAFETY:` above it; say what must hold and why it does"
                ));
            }
        }
        if is_switched_off(line) {
            found.push(format!(
                "{place}: a test is switched off by `ignore`; make it run, or let it say what it lacks and skip itself \
                 (CONTRIBUTING.md, Tests)"
            ));
        }
        for name in LEFT_OVER {
            if has_macro(line, name) {
                found.push(format!(
                    "{place}: {name} is left over; write what should stand there"
                ));
            }
        }
    }
    found
}

/// Whether the line calls that macro and not one whose name ends like it.
fn has_macro(line: &str, name: &str) -> bool {
    let word = name.trim_end_matches('!');
    line.contains(name) && has_word(line, word)
}

fn is_switched_off(line: &str) -> bool {
    let dense: String = line.chars().filter(|c| !c.is_whitespace()).collect();
    dense.contains("#[ignore") || (dense.contains("#[cfg_attr(") && has_word(line, "ignore"))
}

/// Whether a comment with `SAFETY:` (or, for a declaration, a `# Safety` section) stands above the
/// statement to which the `unsafe` on that line belongs, or before it on the line.
fn is_justified(lines: &[&str], code: &[&str], index: usize) -> bool {
    let justifies = |line: &str| line.contains("SAFETY:") || line.contains("# Safety");
    if justifies(lines[index]) {
        return true;
    }
    let mut statement_lines = 0;
    for above in (0..index).rev() {
        let code_above = code[above].trim();
        let is_comment = code_above.is_empty() && !lines[above].trim().is_empty();
        if is_comment {
            if justifies(lines[above]) {
                return true;
            }
        } else if !code_above.starts_with("#[") {
            // A line that closes or ends something belongs to another statement.
            statement_lines += 1;
            let ends = code_above.is_empty() || code_above.ends_with([';', '{', '}', ',']);
            if ends || statement_lines > STATEMENT_LINES {
                return false;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: &str = "crates/reactor/src/sys/ring.rs";

    fn only(path: &str, text: &str) -> String {
        let found = violations_in(path, text);
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn a_file_may_have_800_lines_and_no_more() {
        assert!(violations_in("a.rs", &"//\n".repeat(800)).is_empty());
        assert!(only("a.rs", &"//\n".repeat(801)).starts_with("a.rs has 801 lines, at most 800"));
    }

    #[test]
    fn unsafe_is_for_listed_files() {
        let text = "fn f() {\n    // SAFETY: g has no condition.\n    unsafe { g() }\n}\n";
        assert!(violations_in(ALLOWED, text).is_empty());
        assert!(
            only("crates/volume/src/lib.rs", text)
                .starts_with("crates/volume/src/lib.rs:3: unsafe is not allowed")
        );
        assert!(
            violations_in(
                "crates/volume/src/lib.rs",
                "// unsafe\nconst A: &str = \"unsafe\";\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn unsafe_needs_its_comment() {
        for justified in [
            "// SAFETY: x\nunsafe impl Send for A {}",
            "// SAFETY: x\n// more\n#[inline]\nunsafe fn f() {}",
            "/// Does.\n///\n/// # Safety\n/// x\npub unsafe fn f() {}",
            "// SAFETY: x\nlet a =\n    unsafe { g() };",
            "// SAFETY: x\nlet a = h(\n    unsafe { g() });",
            "let a = /* SAFETY: x */ unsafe { g() };",
        ] {
            assert!(violations_in(ALLOWED, justified).is_empty(), "{justified}");
        }
        for unjustified in [
            "unsafe { g() }",
            "// SAFETY: x\nlet b = 1;\nunsafe { g() }",
            "// SAFETY: x\n\nlet b = 1;\n// because\nunsafe { g() }",
            "const A: &str = \"SAFETY:\";\nunsafe { g() }",
        ] {
            assert!(
                only(ALLOWED, unjustified).contains("unsafe without a comment"),
                "{unjustified}"
            );
        }
    }

    #[test]
    fn tests_may_not_be_switched_off() {
        for text in [
            "#[ignore]",
            "#[ignore = \"slow\"]",
            "#[ ignore ]",
            "#[cfg_attr(miri, ignore)]",
        ] {
            assert!(only("a.rs", text).contains("switched off"), "{text}");
        }
        assert!(violations_in("a.rs", "// #[ignore]\nlet ignore = 1;").is_empty());
    }

    #[test]
    fn nothing_is_left_over() {
        assert!(only("a.rs", "fn f() { todo!() }").starts_with("a.rs:1: todo! is left over"));
        assert!(only("a.rs", "\nlet x = dbg!(y);").starts_with("a.rs:2: dbg! is left over"));
        assert!(violations_in("a.rs", "my_dbg!(y); // todo!\n").is_empty());
    }
}
