//! Every input that is kept, once through its entry: those that once found a fault, and the smallest that lead to each
//! piece of code. What the fuzzer has found cannot come back unnoticed.

use std::path::{Path, PathBuf};

use fuzzing::TARGETS;

/// What a clone carries around, at most.
const CORPUS_BYTES_MAX: u64 = 1 << 20;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The files of a directory in the order of their names.
fn files(directory: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(directory);
    let listed = listed.unwrap_or_else(|error| panic!("cannot list {}: {error}", directory.display()));
    let mut files: Vec<PathBuf> = listed.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn nothing_that_was_found_comes_back() {
    for target in TARGETS {
        let kept = files(&fuzz().join("corpus").join(target.name));
        assert!(!kept.is_empty(), "{} keeps no input", target.name);
        for path in kept {
            let bytes = std::fs::read(&path).unwrap();
            let run = std::panic::catch_unwind(|| (target.run)(&bytes));
            assert!(run.is_ok(), "{} on {}", target.name, path.display());
        }
    }
}

#[test]
fn every_entry_has_a_program_and_every_program_an_entry() {
    let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let mut programs = Vec::new();
    for path in files(&fuzz().join("fuzz_targets")) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&format!("fuzzing::target(\"{name}\")")), "{name}");
        assert!(
            manifest.contains(&format!("name = \"{name}\"\n")),
            "{name} is not in the manifest"
        );
        programs.push(name);
    }
    let mut entries: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    entries.sort_unstable();
    assert_eq!(programs, entries);
    let kept = files(&fuzz().join("corpus"));
    let kept: Vec<_> = kept.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(kept, entries, "one directory for each entry");
}

#[test]
fn the_corpus_is_small() {
    let bytes: u64 = TARGETS
        .iter()
        .flat_map(|target| files(&fuzz().join("corpus").join(target.name)))
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert!(
        bytes < CORPUS_BYTES_MAX,
        "{bytes} bytes are kept, at most {CORPUS_BYTES_MAX} may be; keep the smallest inputs (CONTRIBUTING.md, Fuzzing)"
    );
}
