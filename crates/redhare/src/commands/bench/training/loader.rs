//! The rows about a loader: a PyTorch loader that decodes JPEGs of a volume, beside one on local files
//! (`python/redhare/torch/bench.py`, which says how).

use std::path::Path;
use std::process::Command;

use bench::process::run_timed;
use bench::report::{Bar, Row};

use super::{FILE_BYTES, ROOM_BYTES, Stage};
use crate::commands::bench::python;
use crate::output::Failure;

/// The promises: at least so much of the local images per second, and at most so many microseconds of processor time more an image.
const RATE_BAR: f64 = 0.95;
const CPU_BAR_US: f64 = 40.0;
const WORKERS: &str = "8";
const VOLUME: &str = "images";
/// What `tests/python` ends with where what it needs cannot be had.
const CANNOT_BE_HAD: i32 = 69;

fn missing(why: &str) -> Vec<Row> {
    vec![Row::missing("loader: images/s", Bar::AtLeast(RATE_BAR), why)]
}

/// The rows; where PyTorch, Pillow or our library is missing, that it is.
pub(super) fn rows(stage: &Stage<'_>) -> Result<Vec<Row>, Failure> {
    let Some(package) = python::package(stage.scratch)? else {
        return Ok(missing(python::NOT_BUILT));
    };
    let interpreter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python");
    let found = Command::new(&interpreter)
        .arg("--fetch-only")
        .output()
        .map_err(Failure::new)?;
    if found.status.code() == Some(CANNOT_BE_HAD) {
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        return Ok(missing(said.trim_end()));
    }
    let python = |arguments: &[&str]| -> Result<String, Failure> {
        let mut command = Command::new(&interpreter);
        command.args(["-m", "redhare.torch.bench"]).args(arguments);
        command.env("PYTHONPATH", &package);
        Ok(run_timed(&mut command).map_err(Failure::new)?.0)
    };
    let source = stage.scratch.join("images");
    let (shown, count) = (source.display().to_string(), stage.arguments.images.to_string());
    python(&["make", &shown, "--images", &count])?;
    let content = u64::from(stage.arguments.images) * FILE_BYTES as u64;
    stage.volume(VOLUME, content * 4 + ROOM_BYTES, 3)?;
    stage.up.redhare(&["fs", "import", &shown, VOLUME])?;
    let address = format!("redhare://{}/{VOLUME}", stage.up.master);
    let (server, rounds) = (
        stage.up.id().to_string(),
        stage.rounds().div_ceil(2).max(2).to_string(),
    );
    let mut rows = Vec::new();
    for work in ["decode", "timer"] {
        let arguments = [
            "measure",
            &address,
            "--against",
            &shown,
            "--work",
            work,
            "--workers",
            WORKERS,
            "--rounds",
            &rounds,
            "--server",
            &server,
        ];
        rows.extend(described(work, &python(&arguments)?)?);
    }
    stage.up.redhare(&["volume", "delete", VOLUME])?;
    Ok(rows)
}

fn described(work: &str, text: &str) -> Result<[Row; 2], Failure> {
    let view: serde_json::Value = serde_json::from_str(text).map_err(Failure::new)?;
    let number = |pointer: &str| {
        let found = view.pointer(pointer);
        found.and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN)
    };
    let what = match work {
        "decode" => "loader, JPEGs of 16 KiB decoded by 8 workers",
        _ => "loader, 8 workers, a timer in place of the decoding",
    };
    let note = format!(
        "volume {:.0} images/s, {:.0} us of CPU an image (loader and cluster); local {:.0} images/s, {:.0} us; half of the {:.0} rounds \
         between {:.2} and {:.2}; {:.0} bytes an image; local cold: {}",
        number("/volume/images_per_second"),
        number("/volume/cpu_us_per_image"),
        number("/local/images_per_second"),
        number("/local/cpu_us_per_image"),
        number("/rounds"),
        number("/ratio_lower_quartile"),
        number("/ratio_upper_quartile"),
        number("/bytes_an_image"),
        view["cold_local"].as_str().unwrap_or_default(),
    );
    let rate = Row::new(
        what,
        number("/ratio"),
        "of local images/s",
        Some(Bar::AtLeast(RATE_BAR)),
    );
    let more = number("/volume/cpu_us_per_image") - number("/local/cpu_us_per_image");
    let cpu = Row::new(
        format!("{what}: processor time beyond the local loader's"),
        more,
        "us/image",
        Some(Bar::AtMost(CPU_BAR_US)),
    );
    Ok([rate.with_note(note), cpu])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_processor_time_has_a_row_of_its_own() {
        let text = r#"{"ratio": 0.97, "rounds": 5, "volume": {"images_per_second": 970, "cpu_us_per_image": 1040},
            "local": {"images_per_second": 1000, "cpu_us_per_image": 1000}}"#;
        let [rate, cpu] = described("decode", text).unwrap();
        assert!(!rate.is_missed() && rate.value == 0.97);
        assert!(!cpu.is_missed() && cpu.value == 40.0);
        let [rate, cpu] = described("timer", "{}").unwrap();
        assert!(
            rate.is_missed() && cpu.is_missed(),
            "what was not measured meets no bar"
        );
    }
}
