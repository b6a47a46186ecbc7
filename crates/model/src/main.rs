//! The program behind `cargo xtask model`.

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    model::run(&arguments)
}
