//! `redhare`: every daemon and every command of Redhare in one binary.

mod commands;
mod output;

use std::io::IsTerminal;

use clap::{CommandFactory, Parser, Subcommand};

/// Shared NVMe storage for GPU clusters.
#[derive(Parser)]
#[command(
    name = "redhare",
    version = foundation::RELEASE,
    about,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Example:\n  redhare up &\n  redhare volume create data --size 4GiB\n  redhare fs format data\n  redhare fs import ./images data"
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
    #[command(after_help = "Example:\n  redhare doctor")]
    Doctor,
    /// Serve block devices over NVMe/TCP
    Target(commands::target::TargetArguments),
    /// Measure
    #[command(subcommand, after_help = "Example:\n  redhare bench echo compare --help")]
    Bench(commands::bench::Bench),
    Up(commands::up::UpArguments),
    Master(commands::master::MasterArguments),
    Node(commands::node::NodeArguments),
    Volume(commands::volume::VolumeArguments),
    Status(commands::cluster::StatusArguments),
    Cluster(commands::rebalance::ClusterCommands),
    Ca(commands::ca::CaArguments),
    Meta(commands::meta::MetaArguments),
    Fs(commands::fs::FsArguments),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  redhare completion bash > /etc/bash_completion.d/redhare")]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn main() -> std::process::ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let output = output::Output::new(arguments.json);
    let set_filter = start_logging();
    let result = match arguments.command {
        Command::Doctor => commands::doctor::run(&output),
        Command::Target(arguments) => commands::target::run(&arguments, set_filter),
        Command::Bench(bench) => commands::bench::run(bench, &output),
        Command::Up(arguments) => commands::up::run(&arguments, &output),
        Command::Node(arguments) => commands::node::run(arguments, &output),
        Command::Master(arguments) => commands::master::run(arguments, &output),
        Command::Volume(arguments) => commands::volume::run(arguments, &output),
        Command::Meta(arguments) => commands::meta::run(&arguments, &output),
        Command::Cluster(arguments) => commands::rebalance::run(&arguments, &output),
        Command::Ca(arguments) => commands::ca::run(arguments, &output),
        Command::Status(arguments) => commands::cluster::status(&arguments, &output),
        Command::Fs(arguments) => commands::fs::run(arguments, &output),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "redhare", &mut script);
            output::write(&script);
            Ok(())
        }
    };
    match result {
        // Whoever reads the status takes the result for complete.
        Ok(()) if output::is_lost() => std::process::ExitCode::FAILURE,
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failure) => output.fail(&failure),
    }
}

/// What clap has to say: help and the version are results, a wrong word is a failure, for machines as for people.
fn refuse(error: &clap::Error) -> std::process::ExitCode {
    let wants_json = std::env::args_os().any(|argument| argument == "--json");
    if error.use_stderr() && wants_json {
        let failure = output::Failure::new(error.render().to_string().trim_end());
        output::Output::new(true).fail(&failure);
    } else if error.print().is_err() {
        // A reader that has seen enough.
    }
    u8::try_from(error.exit_code()).map_or(std::process::ExitCode::FAILURE, Into::into)
}

/// Logs go to standard error; `RUST_LOG` chooses what. What is given back changes it later.
fn start_logging() -> impl Fn(&str) -> Result<(), String> + 'static {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
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

    #[test]
    fn the_help_of_every_command_has_an_example() {
        let mut commands = vec![(String::new(), Arguments::command())];
        let mut without = Vec::new();
        while let Some((path, mut command)) = commands.pop() {
            if !command.render_long_help().to_string().contains("Example") {
                without.push(path.clone());
            }
            for inner in command
                .get_subcommands()
                .filter(|inner| inner.get_name() != "help")
            {
                commands.push((format!("{path} {}", inner.get_name()), inner.clone()));
            }
        }
        assert_eq!(without, Vec::<String>::new());
    }
}
