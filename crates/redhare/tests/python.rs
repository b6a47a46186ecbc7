//! The Python package `redhare`: its own tests (`python/tests`, pytest), with the library and the program that this build
//! made. The last line says how many there were, as other test programs do. `tests/python` fetches what they need.
//!
//! An argument that is no option chooses tests by their names: `cargo test -p redhare --test python -- fork`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What `tests/python` ends with where what it needs cannot be had.
const CANNOT_BE_HAD: i32 = 69;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn python() -> Command {
    Command::new(root().join("tests/python"))
}

/// Whether Python and the wheels are there. If not, the tests are skipped, and say so; where `CI=true` they fail.
fn is_there() -> bool {
    let fetched = python().arg("--fetch-only").output().unwrap();
    if fetched.status.success() {
        return true;
    }
    let said = String::from_utf8_lossy(&fetched.stderr).into_owned();
    assert_eq!(fetched.status.code(), Some(CANNOT_BE_HAD), "{said}");
    let why = said
        .lines()
        .last()
        .unwrap_or_default()
        .trim_start_matches("SKIP: ");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
    eprintln!("SKIPPED: {why}");
    if let Ok(list) = std::env::var("REDHARE_SKIPS") {
        let list = std::fs::OpenOptions::new().append(true).create(true).open(list);
        writeln!(list.unwrap(), "the Python package: {why}").unwrap();
    }
    false
}

/// The library: this program's neighbour, since the crate is among its dependencies.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let library = own.with_file_name("libredhare_python.so");
    assert!(library.is_file(), "{} was not built", library.display());
    library
}

fn main() -> ExitCode {
    if !is_there() {
        println!("test result: ok. 1 passed; 0 failed; 0 ignored; skipped as a whole");
        return ExitCode::SUCCESS;
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-package");
    let staged = python()
        .arg(root().join("python/tests/stage.py"))
        .arg(library())
        .arg(&directory)
        .status()
        .unwrap();
    assert!(staged.success(), "the package could not be laid out");
    let mut tests = python();
    tests
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir"])
        .arg(root().join("python"))
        .arg(root().join("python/tests"))
        .env("PYTHONPATH", &directory)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("REDHARE_PROGRAM", env!("CARGO_BIN_EXE_redhare"))
        .env_remove("REDHARE_CLUSTER")
        .env_remove("RUST_LOG");
    if let Some(name) = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'))
    {
        tests.args(["-k", &name]);
    }
    match tests.status().unwrap().success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
