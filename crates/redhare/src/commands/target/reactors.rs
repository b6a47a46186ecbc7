//! How many reactors the target runs, and where.

use clap::Args;
use fabrics::target::Target;
use reactor::{Config, CoreHandle, Cores};

use crate::output::Failure;

/// Reactors of one process, at most.
const REACTORS_MAX: usize = 256;

#[derive(Args, Clone, Debug, Default)]
pub(super) struct ReactorArguments {
    /// Serve connections on so many reactors, each a thread, wherever the kernel runs them
    #[arg(long, value_name = "COUNT", conflicts_with = "cpus", value_parser = clap::value_parser!(u16).range(1..=REACTORS_MAX as i64))]
    reactors: Option<u16>,
    /// Serve connections on one reactor for each of these processors, each kept there, such as 0,2-3
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    cpus: Option<Cpus>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cpus(Vec<usize>);

fn parse_cpus(text: &str) -> Result<Cpus, String> {
    let number = |text: &str| {
        text.parse::<usize>()
            .map_err(|_| format!("\"{text}\" is no processor's number; write a list such as 0,2-3"))
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first || last - first >= REACTORS_MAX || cpus.len() + (last - first) >= REACTORS_MAX {
            return Err(format!(
                "{part} is no range of at most {REACTORS_MAX} processors in all; write a list such as 0,2-3"
            ));
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(format!("processor {cpu} is named twice; name each once"));
            }
            cpus.push(cpu);
        }
    }
    Ok(Cpus(cpus))
}

/// The reactors beside the first, which is the calling one. They end when this is dropped.
pub(super) struct Reactors {
    /// Of the first.
    cpu: Option<usize>,
    _others: Option<Cores>,
}

impl ReactorArguments {
    /// Whether there will be more than one.
    pub(super) fn are_several(&self) -> bool {
        self.count() > 1
    }

    fn count(&self) -> usize {
        match &self.cpus {
            Some(Cpus(cpus)) => cpus.len(),
            None => self.reactors.unwrap_or(1).into(),
        }
    }

    /// Starts the reactors and lets them serve `target`.
    pub(super) fn start(&self, target: &Target) -> Result<Reactors, Failure> {
        let cpus = self.cpus.as_ref().map(|Cpus(cpus)| cpus.as_slice());
        let config = Config {
            index: 1,
            ..Config::default()
        };
        let mut others = None;
        if self.are_several() {
            let started = Cores::start(self.count() - 1, cpus.map(|cpus| &cpus[1..]), &config);
            let started = started.map_err(|error| self.not_started(&error))?;
            let own = std::iter::once(CoreHandle::current());
            target.serve_on(own.chain(started.handles().cloned()).collect());
            others = Some(started);
        }
        Ok(Reactors {
            cpu: cpus.and_then(|cpus| cpus.first().copied()),
            _others: others,
        })
    }

    fn not_started(&self, error: &dyn std::error::Error) -> Failure {
        match &self.cpus {
            Some(Cpus(cpus)) => Failure::new(format!(
                "the reactors for processors {cpus:?} do not start: {error}; name processors that this process may use"
            )),
            None => Failure::new(error),
        }
    }
}

impl Reactors {
    /// Keeps the first reactor on its processor. To be called when all other threads run, which would stay there too.
    pub(super) fn settle(&self) -> Result<(), Failure> {
        let Some(cpu) = self.cpu else { return Ok(()) };
        reactor::pin(cpu).map_err(|error| {
            Failure::new(format!(
                "the first reactor cannot run on processor {cpu}: {error}; name processors that this process may use"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_or_refused() {
        assert_eq!(parse_cpus("0,2-4"), Ok(Cpus(vec![0, 2, 3, 4])));
        assert_eq!(parse_cpus("7"), Ok(Cpus(vec![7])));
        for (text, why) in [
            ("", "is no processor"),
            ("0,", "is no processor"),
            ("a-2", "is no processor"),
            ("3-2", "is no range"),
            ("0-999999999999", "is no range"),
            ("0-200,300-400", "is no range"),
            ("1,0-2", "named twice"),
        ] {
            let error = parse_cpus(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
