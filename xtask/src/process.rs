//! Running other programs, and where the workspace is.

use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

/// The root of the workspace.
pub(crate) fn workspace_root() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(
        // Run without cargo: the place it was built in.
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")),
        PathBuf::from,
    );
    own.parent()
        .expect("xtask lies in a directory of the workspace")
        .to_path_buf()
}

/// `cargo ARGUMENTS` in the workspace root, with the cargo that runs us.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace_root());
    command
}

/// Runs the command to its end with our own output; the error names the program and the remedy.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus, String> {
    command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| cannot_start(command, &error))
}

/// Runs the command to its end and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let result = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| cannot_start(command, &error))?;
    if !result.status.success() {
        return Err(format!(
            "{command:?} ended with {}; see its messages above",
            result.status
        ));
    }
    String::from_utf8(result.stdout).map_err(|_| format!("{command:?} printed bytes that are not UTF-8"))
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!(
        "cannot start {}: {error}; run `make setup`",
        command.get_program().to_string_lossy()
    )
}
