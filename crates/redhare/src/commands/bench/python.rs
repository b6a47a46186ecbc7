//! The row of `redhare bench fs` about Python: `read_many` of the package beside Python's own reading of local files
//! (`python/redhare/bench.py`, which says how).

use std::path::{Path, PathBuf};
use std::process::Command;

use bench::process::run_timed;
use bench::report::{Bar, Row};

use crate::output::Failure;

/// The promise: at least so many times what Python reads from local files.
const BAR: f64 = 1.5;
const FILES_IN_FLIGHT: &str = "16";

/// The library of the package, beside this program; none if it was not built.
fn library() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let library = own.with_file_name("libredhare_python.so");
    library.is_file().then_some(library)
}

fn name() -> String {
    format!("16 KiB files, 3 copies, {FILES_IN_FLIGHT} in flight, index in memory, read_many in Python")
}

/// Why there is no package.
pub(super) const NOT_BUILT: &str = "build its library first: cargo build --release -p redhare-python";

/// The package laid out below a directory, as a wheel does it; none where its library was not built.
pub(super) fn package(scratch: &Path) -> Result<Option<PathBuf>, Failure> {
    let Some(library) = library() else {
        return Ok(None);
    };
    let package = scratch.join("python");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let mut stage = Command::new("python3");
    stage
        .arg(sources.join("tests/stage.py"))
        .arg(library)
        .arg(&package);
    run_timed(&mut stage).map_err(Failure::new)?;
    Ok(Some(package))
}

/// Measures a volume that was filled from `source`; where the package was not built, says so.
pub(super) fn row(
    address: &str,
    server: u32,
    source: &Path,
    scratch: &Path,
    rounds: usize,
    seconds: f64,
) -> Result<Row, Failure> {
    let Some(package) = package(scratch)? else {
        return Ok(Row::missing(name(), Bar::AtLeast(BAR), NOT_BUILT));
    };
    let mut measure = Command::new("python3");
    measure
        .args(["-m", "redhare.bench", address, "--against"])
        .arg(source)
        .args(["--files-in-flight", FILES_IN_FLIGHT])
        .args(["--rounds", &rounds.to_string(), "--seconds", &seconds.to_string()])
        .args(["--server", &server.to_string()])
        .env("PYTHONPATH", package);
    let (text, _) = run_timed(&mut measure).map_err(Failure::new)?;
    described(&text)
}

fn described(text: &str) -> Result<Row, Failure> {
    let view: serde_json::Value = serde_json::from_str(text).map_err(Failure::new)?;
    let number = |pointer: &str| view.pointer(pointer).and_then(serde_json::Value::as_f64);
    let shown = |pointer: &str| number(pointer).unwrap_or(f64::NAN);
    let row = Row::new(
        name(),
        shown("/ratio"),
        "of local files/s by os.pread",
        Some(Bar::AtLeast(BAR)),
    );
    let side = |side: &str| {
        format!(
            "{:.0} files/s, {:.1} us of CPU a file",
            shown(&format!("/{side}/files_per_second")),
            shown(&format!("/{side}/cpu_us_per_file"))
        )
    };
    Ok(row.with_note(format!(
        "volume {} (client and cluster); local {} ({FILES_IN_FLIGHT} threads); {:.0} of the volume's reads past its nodes; \
         half of the {:.0} rounds between {:.2} and {:.2}; local cold: {}",
        side("volume"),
        side("local"),
        shown("/past_reads"),
        shown("/rounds"),
        shown("/ratio_lower_quartile"),
        shown("/ratio_upper_quartile"),
        view["cold_local"].as_str().unwrap_or_default(),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_ratio_and_the_processor_time_of_both_sides() {
        let text = r#"{"ratio": 1.75, "rounds": 20, "ratio_lower_quartile": 1.7, "ratio_upper_quartile": 1.8,
            "volume": {"files_per_second": 1234.4, "cpu_us_per_file": 56.78},
            "local": {"files_per_second": 705.0, "cpu_us_per_file": 90.0}, "past_reads": 77, "cold_local": "dropped"}"#;
        let row = described(text).unwrap();
        assert!(!row.is_missed() && row.value == 1.75);
        assert!(
            row.note.contains("1234 files/s, 56.8 us") && row.note.contains("705 files/s, 90.0 us"),
            "{}",
            row.note
        );
        assert!(
            described("{}").unwrap().is_missed(),
            "what was not measured meets no bar"
        );
        assert!(described("no JSON").is_err());
    }
}
