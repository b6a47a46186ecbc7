//! `redhare`: every daemon and every command of Redhare in one binary.

mod commands;
mod output;

use clap::{CommandFactory, Parser, Subcommand};

/// Shared NVMe storage for GPU clusters.
#[derive(Parser)]
#[command(
    name = "redhare",
    version,
    about,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Arguments {
    /// Print JSON for machines instead of tables for people
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what this machine lacks, what that costs, and how to mend it
    Doctor,
    /// Serve block devices over NVMe/TCP
    Target(commands::target::TargetArguments),
    /// Measure
    #[command(subcommand)]
    Bench(commands::bench::Bench),
    Up(commands::up::UpArguments),
    Master(commands::master::MasterArguments),
    Node(commands::node::NodeArguments),
    Volume(commands::volume::VolumeArguments),
    Status(commands::cluster::StatusArguments),
    Fs(commands::fs::FsArguments),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  redhare completion bash > /etc/bash_completion.d/redhare")]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let output = output::Output::new(arguments.json);
    let set_filter = start_logging();
    let result = match arguments.command {
        Command::Doctor => commands::doctor::run(&output),
        Command::Target(arguments) => commands::target::run(&arguments, set_filter),
        Command::Bench(bench) => commands::bench::run(bench, &output),
        Command::Up(arguments) => commands::up::run(&arguments),
        Command::Node(arguments) => commands::node::run(arguments),
        Command::Master(arguments) => commands::master::run(arguments),
        Command::Volume(arguments) => commands::volume::run(arguments, &output),
        Command::Status(arguments) => commands::cluster::status(&arguments, &output),
        Command::Fs(arguments) => commands::fs::run(arguments, &output),
        Command::Completion { shell } => {
            clap_complete::generate(
                shell,
                &mut Arguments::command(),
                "redhare",
                &mut std::io::stdout(),
            );
            Ok(())
        }
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failure) => output.fail(&failure),
    }
}

/// Logs go to standard error; `RUST_LOG` chooses what. What is given back changes it later.
fn start_logging() -> impl Fn(&str) -> Result<(), String> + 'static {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    move |filter| {
        handle
            .reload(tracing_subscriber::EnvFilter::new(filter))
            .map_err(|error| format!("the log cannot be changed: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
