//! The command line: `walk`, `search`, `table`.

use std::process::ExitCode;
use std::time::Duration;

use crate::bounds::{self, Bounds, EXTENSIONS, SHAPES};
use crate::rules::{Rule, Rules};
use crate::search::{Ended, Limits, Searched, search};
use crate::trace::Trace;
use crate::walk::{Hunt, hunt};

/// How long a walk goes on, and a search at most, unless told.
const WALK_TIME: Duration = Duration::from_secs(20);
const SEARCH_TIME: Duration = Duration::from_secs(3600);

const USAGE: &str = "\
usage: redhare-model COMMAND [OPTION...]

  walk    random walks by seed through every shape; each heals at the end
  search  every state that can be reached within the bounds of a shape
  table   each rule off in turn: which search finds it, how soon, by which steps
  rules   the rules, and the sections of the contract that have them
  shapes  the shapes that walks and searches go through

  --seconds S    how long (20; of `table`: for each rule; of `search`: 3600)
  --memory MIB   `search`: memory for the states seen (2048)
  --operations N, --faults N, --ticks N, --proposals N, --joins N, --clients N
                 instead of the shape's bounds
  --shape NAME   only this shape
  --seed N       `walk`: only the walk of this seed
  --first N      the seed to begin with (0)
  --off RULE     a rule to switch off; may be given several times
  --threads N    threads (as many as there are processors)
  --brief        `table`: without the traces

examples:
  redhare-model walk --seconds 60
  redhare-model walk --off seal-gate --shape 3-1-calm
  redhare-model search --shape small-2-1 --threads 4
  redhare-model table --seconds 30

status: 0 every promise was kept (`search`: and no state was left out; `table`: every rule that is off was found), 1 not,
2 the arguments are wrong";

/// What was asked for on the command line.
pub(crate) struct Options {
    pub(crate) seconds: Option<Duration>,
    pub(crate) memory_mib: usize,
    pub(crate) shapes: Vec<Bounds>,
    pub(crate) has_shape: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) first: u64,
    pub(crate) off: Vec<Rule>,
    pub(crate) threads: usize,
    pub(crate) brief: bool,
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{name} takes a number, not '{value}'"))
}

/// Sets one bound of every shape.
fn bound(
    shapes: &mut [Bounds],
    of: impl Fn(&mut Bounds) -> &mut u8,
    name: &str,
    value: &str,
) -> Result<(), String> {
    let wanted: u8 = number(name, value)?;
    let most = match name {
        "--operations" => 7,
        "--clients" => 2,
        _ => 100,
    };
    if wanted > most {
        return Err(format!("{name} takes at most {most}, not {wanted}"));
    }
    shapes.iter_mut().for_each(|shape| *of(shape) = wanted);
    Ok(())
}

impl Options {
    fn read(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options {
            seconds: None,
            memory_mib: 2048,
            shapes: SHAPES.iter().chain(EXTENSIONS).copied().collect(),
            has_shape: false,
            seed: None,
            first: 0,
            off: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            brief: false,
        };
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            if name == "--brief" {
                options.brief = true;
                continue;
            }
            let value = rest.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--seconds" => {
                    let seconds: f64 = number(name, value)?;
                    let wanted = Duration::try_from_secs_f64(seconds);
                    let wanted =
                        wanted.map_err(|_| format!("--seconds takes a positive number, not '{value}'"))?;
                    options.seconds = Some(wanted);
                }
                "--shape" => {
                    let shape = bounds::named(value);
                    let shape = shape.ok_or_else(|| format!("no shape '{value}'; `shapes` lists them"))?;
                    options.shapes = vec![shape];
                    options.has_shape = true;
                }
                "--seed" => options.seed = Some(number(name, value)?),
                "--first" => options.first = number(name, value)?,
                "--off" => {
                    let rule = Rule::named(value);
                    options
                        .off
                        .push(rule.ok_or_else(|| format!("no rule '{value}'; `rules` lists them"))?);
                }
                "--memory" => options.memory_mib = number(name, value)?,
                "--operations" => bound(&mut options.shapes, |b| &mut b.operations, name, value)?,
                "--faults" => bound(&mut options.shapes, |b| &mut b.faults, name, value)?,
                "--ticks" => bound(&mut options.shapes, |b| &mut b.ticks, name, value)?,
                "--proposals" => bound(&mut options.shapes, |b| &mut b.proposals, name, value)?,
                "--joins" => bound(&mut options.shapes, |b| &mut b.joins, name, value)?,
                "--clients" => bound(&mut options.shapes, |b| &mut b.clients, name, value)?,
                "--threads" => options.threads = number(name, value)?,
                _ => return Err(format!("no option '{name}'")),
            }
        }
        Ok(options)
    }

    pub(crate) fn rules(&self) -> Rules {
        self.off
            .iter()
            .fold(Rules::ALL, |rules, rule| rules.without(*rule))
    }
}

/// Runs the command that these arguments (without the program's name) ask for.
pub fn run(arguments: &[String]) -> ExitCode {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) if !["-h", "--help"].contains(&command.as_str()) => (command.as_str(), rest),
        _ => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
    };
    let options = match Options::read(rest) {
        Ok(options) => options,
        Err(why) => return unusable(&why),
    };
    let kept = match command {
        "walk" => walk(&options),
        "search" => search_all(&options),
        "table" => table(&options),
        "rules" => {
            for rule in Rule::all() {
                println!("{:20} {:22} {}", rule.name(), rule.section(), rule.sentence());
            }
            true
        }
        "shapes" => {
            for shape in SHAPES
                .iter()
                .chain(EXTENSIONS)
                .chain(bounds::BEYOND)
                .chain(bounds::SMALL)
            {
                println!("{shape:?}");
            }
            true
        }
        _ => return unusable(&format!("no command '{command}'")),
    };
    if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

fn unusable(why: &str) -> ExitCode {
    eprintln!("redhare-model: {why}\n\n{USAGE}");
    ExitCode::from(2)
}

/// The trace, one numbered step a line.
pub(crate) fn print_trace(trace: &Trace) {
    if trace.rates.iter().any(|rate| *rate != 1000) {
        println!("     clocks of 0 to 3 at {:?} of 1000", trace.rates);
    }
    for (index, step) in trace.steps.iter().enumerate() {
        println!("    {:3}. {}", index + 1, step.text);
    }
}

fn walk(options: &Options) -> bool {
    let (first, walks) = match options.seed {
        Some(seed) => (seed, options.shapes.len() as u64),
        None => (options.first, u64::MAX),
    };
    let limit = options.seconds.unwrap_or(WALK_TIME);
    let hunt = hunt(
        options.rules(),
        &options.shapes,
        first,
        walks,
        limit,
        options.threads,
    );
    let seconds = hunt.elapsed.as_secs_f64();
    println!("{} walks, {} steps, {seconds:.1} s", hunt.walks, hunt.steps);
    let Hunt {
        found: Some(found), ..
    } = hunt
    else {
        println!("every promise was kept");
        return true;
    };
    let model = crate::model::Model {
        rules: options.rules(),
        bounds: found.bounds,
    };
    let long = found.failure.trace.steps.len();
    let trace = if found.failure.stuck {
        found.failure.trace
    } else {
        found.failure.trace.shorten(&model)
    };
    println!(
        "shape {}, seed {}: {} ({long} steps, {} after shortening)",
        found.bounds.name,
        found.seed,
        trace.why,
        trace.steps.len()
    );
    print_trace(&trace);
    false
}

/// Searches the shape that was named, or every small one.
fn search_all(options: &Options) -> bool {
    let shapes = if options.has_shape {
        &options.shapes[..]
    } else {
        bounds::SMALL
    };
    let mut kept = true;
    for bounds in shapes {
        let model = crate::model::Model {
            rules: options.rules(),
            bounds: *bounds,
        };
        let limits = Limits {
            memory_bytes: options.memory_mib << 20,
            time: options.seconds.unwrap_or(SEARCH_TIME),
            threads: options.threads,
            progress: true,
        };
        kept &= print_search(&model, search(&model, limits));
    }
    kept
}

/// One line, and the trace of what was found. Whether every state was seen and nothing was.
fn print_search(model: &crate::model::Model, searched: Searched) -> bool {
    let numbers = format!(
        "{} states, {} steps, depth {}, {:.1} s",
        searched.states,
        searched.steps,
        searched.depth,
        searched.elapsed.as_secs_f64()
    );
    let name = model.bounds.name;
    match searched.ended {
        Ended::Complete => println!("{name}: complete: {numbers}"),
        Ended::Stopped { why, waiting } => {
            println!("{name}: stopped, {why}: {numbers}; {waiting} states wait");
            return false;
        }
        Ended::Found(trace) => {
            let long = trace.steps.len();
            let trace = trace.shorten(model);
            println!(
                "{name}: broken after {numbers}: {} ({long} steps, {} after shortening)",
                trace.why,
                trace.steps.len()
            );
            print_trace(&trace);
            return false;
        }
    }
    true
}

fn table(options: &Options) -> bool {
    let mut all = true;
    for rule in Rule::all() {
        if !options.off.is_empty() && !options.off.contains(&rule) {
            continue;
        }
        let rules = Rules::ALL.without(rule);
        let hunt = hunt(
            rules,
            &options.shapes,
            options.first,
            u64::MAX,
            options.seconds.unwrap_or(WALK_TIME),
            options.threads,
        );
        let seconds = hunt.elapsed.as_secs_f64();
        let Some(found) = hunt.found else {
            all = false;
            println!(
                "{:20} not found: {} walks, {} steps, {seconds:.1} s",
                rule.name(),
                hunt.walks,
                hunt.steps
            );
            continue;
        };
        let model = crate::model::Model {
            rules,
            bounds: found.bounds,
        };
        let trace = if found.failure.stuck {
            found.failure.trace
        } else {
            found.failure.trace.shorten(&model)
        };
        println!(
            "{:20} walk {} of shape {}: {} walks, {} steps, {seconds:.1} s; {} steps: {}",
            rule.name(),
            found.seed,
            found.bounds.name,
            hunt.walks,
            hunt.steps,
            trace.steps.len(),
            trace.why
        );
        if !options.brief && !found.failure.stuck {
            print_trace(&trace);
        }
    }
    all
}
