//! A verifying workload: clients that read and write blocks which say what they are, and note how long everything took.
//!
//! Each block is a register: its value is a number, and the rest of it follows from place and value, so that whatever else a
//! read may return is seen at once. Whether the values that were read fit the order of events is another matter: the shared
//! registers' history is written down for a checker ([`super::history`]).

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bdev::{Channel, ChannelExt};
use client::{Nearby, Session};
use foundation::{Lba, Random};
use reactor::{BufferMut, BufferPool};
use volume::client::VolumeChannel;

use super::history::Event;
use crate::output::Failure;

const BLOCK_BYTES: usize = 4096;
const MAGIC: &[u8; 8] = b"RHFAULTS";
const HEADER_BYTES: usize = 24;
/// What a settled register holds.
const SETTLED: u64 = 1;
/// Of shared registers, so many get half of all operations, so that clients meet; the others make first touches, too.
const HOT: u64 = 256;
/// What takes longer is told at log level debug, as are attempts of the client that did not succeed.
const SLOW: Duration = Duration::from_millis(100);

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Reads registers that were written before, and are not again, in regions where nothing is.
    ReadSettled,
    /// Reads such registers that lie between some that are written.
    ReadBetween,
    /// Writes registers that nobody else touches, and reads each at the end.
    WriteOwn,
    /// Reads and writes registers that all share; every operation goes to the history.
    Share,
}

/// Clients and what they do.
#[derive(Clone)]
pub(super) struct Plan {
    /// Of each client, a thread with a session of its own, its workers.
    pub(super) clients: Vec<Vec<Role>>,
    /// How many registers of each kind there are.
    pub(super) registers: u64,
    /// Between two operations of a worker.
    pub(super) pause: Duration,
    /// Go on after an operation has failed; only wrong bytes end the work.
    pub(super) tolerant: bool,
    pub(super) seed: u64,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) role: Role,
    pub(super) is_write: bool,
    /// Since the load began.
    pub(super) began: Duration,
    pub(super) took: Duration,
}

/// What came of the work.
#[derive(Default)]
pub(super) struct Done {
    pub(super) samples: Vec<Sample>,
    pub(super) events: Vec<Event>,
    /// Operations that ended with an error, and the last one.
    pub(super) failed: u64,
    pub(super) last_error: Option<String>,
}

impl Done {
    fn add(&mut self, other: Done) {
        self.samples.extend(other.samples);
        self.events.extend(other.events);
        self.failed += other.failed;
        self.last_error = other.last_error.or(self.last_error.take());
    }

    /// The longest of a role's operations that were under way between these times; none if there was none.
    pub(super) fn worst(&self, role: Role, from: Duration, to: Duration) -> Option<Duration> {
        let within = |sample: &&Sample| {
            sample.role == role && sample.began <= to && sample.began + sample.took >= from
        };
        self.samples.iter().filter(within).map(|sample| sample.took).max()
    }

    /// The same of operations that had ended at the second time.
    pub(super) fn worst_ended(&self, role: Role, from: Duration, to: Duration) -> Option<Duration> {
        let within = |sample: &&Sample| {
            let end = sample.began + sample.took;
            sample.role == role && (from..=to).contains(&end)
        };
        self.samples.iter().filter(within).map(|sample| sample.took).max()
    }
}

impl Done {
    /// A role's operations that ended between these times, by the second.
    pub(super) fn rate(&self, role: Role, (from, to): (Duration, Duration)) -> f64 {
        self.ended(role, (from, to)).count() as f64 / (to - from).as_secs_f64()
    }

    /// The median of the times that they took.
    pub(super) fn median(&self, role: Role, window: (Duration, Duration)) -> Duration {
        self.percentile(role, window, 0.5)
    }

    /// The time that so many of them (0 to 1) took no longer than; 0 if there were none.
    pub(super) fn percentile(&self, role: Role, window: (Duration, Duration), share: f64) -> Duration {
        let mut took: Vec<Duration> = self.ended(role, window).map(|sample| sample.took).collect();
        took.sort_unstable();
        let at = (took.len() as f64 * share) as usize;
        took.get(at.min(took.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    }

    fn ended(&self, role: Role, (from, to): (Duration, Duration)) -> impl Iterator<Item = &Sample> {
        let within =
            move |sample: &&Sample| sample.role == role && (from..to).contains(&(sample.began + sample.took));
        self.samples.iter().filter(within)
    }
}

struct Shared {
    stop: AtomicBool,
    operations: AtomicU64,
    began: Instant,
    plan: Plan,
}

/// See the module. Ends when it is dropped.
pub(super) struct Load {
    threads: Vec<JoinHandle<Result<Done, String>>>,
    shared: Arc<Shared>,
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Load {
    /// Begins. The calling thread's host is the clients'.
    pub(super) fn start(masters: &str, volume: &str, plan: Plan) -> Self {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            began: Instant::now(),
            plan,
        });
        let client = |number: usize| {
            let (masters, volume, shared) = (masters.to_owned(), volume.to_owned(), shared.clone());
            std::thread::spawn(move || run_client(number, &masters, &volume, &shared))
        };
        Self {
            threads: (0..shared.plan.clients.len()).map(client).collect(),
            shared,
        }
    }

    /// Time since it began, as samples count it.
    pub(super) fn now(&self) -> Duration {
        self.shared.began.elapsed()
    }

    /// Operations that have ended.
    pub(super) fn operations(&self) -> u64 {
        self.shared.operations.load(Ordering::Relaxed)
    }

    /// Whether a client has ended, which is a failure before [`Load::finish`].
    pub(super) fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Waits until so many more operations have ended.
    pub(super) fn wait_for(&self, more: u64) -> Result<(), Failure> {
        let (wanted, deadline) = (self.operations() + more, Instant::now() + super::world::LIMIT);
        while self.operations() < wanted && !self.has_failed() {
            if Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "the clients have done {} of {more} operations in {} s",
                    self.operations() + more - wanted,
                    super::world::LIMIT.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Ends the work.
    ///
    /// # Errors
    /// Wrong bytes; any failed operation, unless the plan tolerates them.
    pub(super) fn finish(mut self) -> Result<Done, Failure> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut done = Done::default();
        for thread in std::mem::take(&mut self.threads) {
            let ended = thread.join().map_err(|_| Failure::new("a client has panicked"))?;
            done.add(ended.map_err(Failure::new)?);
        }
        Ok(done)
    }
}

/// What a register holds by its block's bytes.
fn value_in(lba: Lba, bytes: &[u8]) -> Result<u64, String> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(0);
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a block is longer"));
    let value = word(16);
    let mut expected = vec![0; BLOCK_BYTES];
    fill(lba, value, &mut expected);
    if bytes[..8] != MAGIC[..] {
        return Err(format!(
            "{lba:?} holds no block of this workload: {:02x?}",
            &bytes[..HEADER_BYTES]
        ));
    }
    match (0..BLOCK_BYTES).find(|&at| bytes[at] != expected[at]) {
        None => Ok(value),
        Some(at) => Err(format!(
            "{lba:?} holds value {value} of {:?}, and is wrong from byte {at} on",
            Lba(word(8))
        )),
    }
}

/// The block of a register with a value, which is not 0.
fn fill(lba: Lba, value: u64, bytes: &mut [u8]) {
    let (header, rest) = bytes.split_at_mut(HEADER_BYTES);
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&lba.0.to_le_bytes());
    header[16..].copy_from_slice(&value.to_le_bytes());
    Random::from_seed(lba.0 << 32 ^ value).fill(rest);
}

/// Where registers lie: settled ones in the volume's first half, which is the first half of each chunk too; in the other
/// half settled, own and shared ones side by side.
#[derive(Clone, Copy)]
struct Layout {
    registers: u64,
    half: u64,
}

impl Layout {
    fn lba(&self, role: Role, register: u64) -> Lba {
        let register = register % self.registers;
        let between =
            |kind: u64| self.half + (register * 3 + kind) * (self.half / (self.registers * 3)).max(1);
        Lba(match role {
            Role::ReadSettled => register * (self.half / self.registers).max(1),
            Role::ReadBetween => between(0),
            Role::WriteOwn => between(1),
            Role::Share => between(2),
        })
    }
}

fn run_client(number: usize, masters: &str, volume: &str, shared: &Arc<Shared>) -> Result<Done, String> {
    let done = reactor::run(&reactor::Config::default(), async {
        let session = Session::connect(masters, volume).map_err(|error| error.to_string())?;
        // What is on one machine here stands for what is on many.
        let device = session.device(Nearby::Tcp);
        let channel = Rc::new(device.open());
        let layout = Layout {
            registers: shared.plan.registers,
            half: channel.geometry().blocks.0 / 2,
        };
        let roles = &shared.plan.clients[number];
        for role in [Role::ReadSettled, Role::ReadBetween] {
            if roles.contains(&role) {
                settle(&*channel, role, layout).await?;
            }
        }
        channel.flush().await.map_err(|error| format!("flush: {error}"))?;
        let before: usize = shared.plan.clients[..number].iter().map(Vec::len).sum();
        let all: usize = shared.plan.clients.iter().map(Vec::len).sum();
        let workers: Vec<_> = roles
            .iter()
            .zip(before..)
            .map(|(&role, number)| {
                let worker = Worker {
                    number: number as u64,
                    workers: all as u64,
                    role,
                    channel: channel.clone(),
                    layout,
                    shared: shared.clone(),
                    done: Done::default(),
                    written: 0,
                };
                reactor::spawn(worker.work())
            })
            .collect();
        let mut done = Done::default();
        for worker in workers {
            done.add(worker.await.ok_or("a worker was aborted")??);
        }
        Ok::<_, String>(done)
    });
    done.map_err(|error| error.to_string())?
}

/// Writes the settled registers.
async fn settle(channel: &dyn Channel, role: Role, layout: Layout) -> Result<(), String> {
    for register in 0..layout.registers {
        let lba = layout.lba(role, register);
        let mut buffer = allocate().await?;
        fill(lba, SETTLED, &mut buffer);
        let written = channel.write(lba, buffer.freeze()).await;
        written.map_err(|error| format!("settling: {error}"))?;
    }
    Ok(())
}

struct Worker {
    number: u64,
    workers: u64,
    role: Role,
    channel: Rc<VolumeChannel>,
    layout: Layout,
    shared: Arc<Shared>,
    done: Done,
    /// Values written so far; each is written once.
    written: u64,
}

impl Worker {
    async fn work(mut self) -> Result<Done, String> {
        let mut random = Random::from_seed(self.shared.plan.seed << 16 ^ self.number);
        let registers = self.layout.registers;
        // Of its own registers, the value last written; of one whose write failed, nothing is known.
        let mut own = std::collections::BTreeMap::<u64, u64>::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            match self.role {
                Role::ReadSettled | Role::ReadBetween => {
                    let register = random.below(registers);
                    if let Some(value) = self.read(register).await?
                        && value != SETTLED
                    {
                        return Err(format!("settled register {register} holds {value}"));
                    }
                }
                Role::WriteOwn => {
                    let register = random.below(registers / self.workers) * self.workers + self.number;
                    match self.write(register).await? {
                        (value, true) => own.insert(register, value),
                        _ => own.remove(&register),
                    };
                }
                Role::Share => {
                    let among = if random.below(2) == 0 { HOT } else { registers };
                    let register = random.below(among.min(registers));
                    match random.below(2) {
                        0 => drop(self.read(register).await?),
                        _ => drop(self.write(register).await?),
                    }
                }
            }
            self.shared.operations.fetch_add(1, Ordering::Relaxed);
            if !self.shared.plan.pause.is_zero() {
                reactor::time::sleep(self.shared.plan.pause).await;
            }
        }
        for (register, value) in own {
            if let Some(found) = self.read(register).await?
                && found != value
            {
                return Err(format!(
                    "own register {register} holds {found} instead of {value}"
                ));
            }
        }
        Ok(self.done)
    }

    /// A register's value; none if the read failed and that is tolerated.
    async fn read(&mut self, register: u64) -> Result<Option<u64>, String> {
        let lba = self.layout.lba(self.role, register);
        let buffer = allocate().await?;
        let began = self.shared.began.elapsed();
        let (status, bytes): (_, BufferMut) = self.channel.read(lba, buffer).await;
        let ended = self.shared.began.elapsed();
        self.note(false, began, ended);
        if let Err(error) = status {
            return self.tolerate(format!("read of {lba:?}: {error}")).map(|()| None);
        }
        let value = value_in(lba, &bytes)?;
        if self.role == Role::Share {
            self.done.events.push(Event {
                client: self.number,
                register,
                is_write: false,
                value,
                repeats: 0,
                call: began,
                end: Some(ended),
            });
        }
        Ok(Some(value))
    }

    /// Writes a value that was never written before: the value, and whether it is known to be written.
    async fn write(&mut self, register: u64) -> Result<(u64, bool), String> {
        let lba = self.layout.lba(self.role, register);
        self.written += 1;
        let value = (self.number + 1) << 40 | self.written;
        let mut buffer = allocate().await?;
        fill(lba, value, &mut buffer);
        let (began, repeats) = (self.shared.began.elapsed(), self.channel.repeats());
        let status = self.channel.write(lba, buffer.freeze()).await;
        let ended = self.shared.began.elapsed();
        self.note(true, began, ended);
        if self.role == Role::Share {
            self.done.events.push(Event {
                client: self.number,
                register,
                is_write: true,
                value,
                repeats: self.channel.repeats() - repeats,
                call: began,
                end: status.is_ok().then_some(ended),
            });
        }
        if let Err(error) = status {
            self.tolerate(format!("write of {lba:?}: {error}"))?;
        }
        Ok((value, status.is_ok()))
    }

    fn note(&mut self, is_write: bool, began: Duration, ended: Duration) {
        let took = ended - began;
        if took >= SLOW {
            let (at_ms, took_ms) = (began.as_millis() as u64, took.as_millis() as u64);
            tracing::debug!(at_ms, took_ms, is_write, "slow");
        }
        self.done.samples.push(Sample {
            role: self.role,
            is_write,
            began,
            took,
        });
    }

    fn tolerate(&mut self, error: String) -> Result<(), String> {
        if !self.shared.plan.tolerant {
            return Err(error);
        }
        self.done.failed += 1;
        self.done.last_error = Some(error);
        Ok(())
    }
}

async fn allocate() -> Result<BufferMut, String> {
    let pool = BufferPool::current();
    pool.allocate(BLOCK_BYTES)
        .await
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_what_it_is_and_no_other_passes_for_it() {
        let mut bytes = vec![0; BLOCK_BYTES];
        assert_eq!(value_in(Lba(7), &bytes), Ok(0));
        fill(Lba(7), 9, &mut bytes);
        assert_eq!(value_in(Lba(7), &bytes), Ok(9));
        let error = value_in(Lba(8), &bytes).unwrap_err();
        assert!(
            error.contains("of Lba(7)") && error.contains("from byte 8 on"),
            "{error}"
        );
        bytes[4000] ^= 1;
        assert!(
            value_in(Lba(7), &bytes)
                .unwrap_err()
                .contains("from byte 4000 on")
        );
        bytes[0] = 0;
        assert!(
            value_in(Lba(7), &bytes)
                .unwrap_err()
                .contains("no block of this workload")
        );
    }

    #[test]
    fn what_was_under_way_in_a_window_counts() {
        let at = Duration::from_millis;
        let sample = |role, began, took| Sample {
            role,
            is_write: role == Role::WriteOwn,
            began: at(began),
            took: at(took),
        };
        let (reads, writes) = (Role::ReadSettled, Role::WriteOwn);
        let samples = [
            (reads, 0, 500),
            (reads, 600, 20),
            (writes, 610, 90),
            (reads, 900, 700),
        ];
        let done = Done {
            samples: samples
                .map(|(role, began, took)| sample(role, began, took))
                .to_vec(),
            ..Done::default()
        };
        assert_eq!(done.worst(reads, at(510), at(890)), Some(at(20)));
        assert_eq!(done.worst(reads, at(500), at(890)), Some(at(500)));
        assert_eq!(done.worst(writes, at(650), at(660)), Some(at(90)));
        assert_eq!(done.worst(writes, at(0), at(100)), None);
        assert_eq!(done.worst_ended(reads, at(0), at(890)), Some(at(500)));
        assert_eq!(done.worst_ended(reads, at(610), at(890)), Some(at(20)));
        assert_eq!(done.worst_ended(reads, at(890), at(1500)), None);
        assert_eq!(done.rate(reads, (at(500), at(1500))), 2.0);
        assert_eq!(done.median(reads, (at(0), at(2000))), at(500));
        assert_eq!(done.median(writes, (at(0), at(100))), Duration::ZERO);
        assert_eq!(done.percentile(reads, (at(0), at(2000)), 0.99), at(700));
        assert_eq!(done.percentile(reads, (at(0), at(2000)), 0.1), at(20));
    }

    #[test]
    fn registers_do_not_share_a_block() {
        let layout = Layout {
            registers: 1024,
            half: 32_768,
        };
        let roles = [Role::ReadSettled, Role::ReadBetween, Role::WriteOwn, Role::Share];
        let all = roles.map(|role| (0..1024).map(move |register| layout.lba(role, register)));
        let places: std::collections::BTreeSet<Lba> = all.into_iter().flatten().collect();
        assert_eq!(places.len(), 4 * 1024);
        assert!(places.last().is_some_and(|last| last.0 < 65_536));
    }
}
