//! What a comparison runs in turns: a server on CPU 0 and a client on CPU 1, unless it says otherwise. Each that has its CPU
//! for itself runs before the machine's other programs, if this user may do that.

use bench::paired::Slice;
use bench::process::{Priority, Server, pinned};

use crate::output::Failure;

/// A server that stays up and a client that runs for a slice. Their CPUs are the same, or none is in both lists.
pub(super) struct Contender {
    server: Server,
    client: Vec<String>,
    client_cpus: &'static str,
    priority: Priority,
}

impl Contender {
    pub(super) fn start(server: Vec<String>, client: Vec<String>) -> Result<Self, Failure> {
        Self::start_on(("0", "1"), server, client)
    }

    /// With CPUs for the server and for the client.
    pub(super) fn start_on(
        (server_cpus, client_cpus): (&str, &'static str),
        server: Vec<String>,
        client: Vec<String>,
    ) -> Result<Self, Failure> {
        let priority = if server_cpus == client_cpus {
            Priority::Ordinary
        } else {
            Priority::best()
        };
        Ok(Self {
            server: Server::start_at(priority, server_cpus, &server).map_err(Failure::new)?,
            client,
            client_cpus,
            priority,
        })
    }

    pub(super) fn slice(&self, milliseconds: u64) -> Result<Slice, Failure> {
        let before = self.server.cpu_time().map_err(Failure::new)?;
        let (text, client_cpu) =
            bench::process::run_timed(&mut pinned(self.priority, self.client_cpus, &self.client))
                .map_err(Failure::new)?;
        let spent = self.server.cpu_time().map_err(Failure::new)? - before + client_cpu;
        let number = |name: &str| {
            let mut words = text.split_whitespace();
            words
                .find(|word| *word == name)
                .and_then(|_| words.next())
                .and_then(|n| n.parse::<f64>().ok())
        };
        let (Some(rate), Some(p50_us), Some(p99_us)) =
            (number("requests_per_second"), number("p50_us"), number("p99_us"))
        else {
            return Err(Failure::new(format!(
                "the client {:?} printed no result: {text}",
                self.client
            )));
        };
        let operations = number("operations").unwrap_or(rate * milliseconds as f64 / 1000.0);
        Ok(Slice {
            rate,
            cpu_us: spent.as_secs_f64() * 1e6 / operations,
            p50_us,
            p99_us,
        })
    }
}
