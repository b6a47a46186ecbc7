//! A reader that follows, and one that stays.

use std::rc::Rc;
use std::time::Duration;

use foundation::Random;
use reactor::time;

use super::{Process, World, is_right, millis};
use crate::{OpenError, Reader, ReaderOptions};

/// As a mount does that is to show a commit within a second: for 0.6 s the kernel believes what it was told before.
const LOOKS_EVERY: Duration = Duration::from_millis(400);
/// How long a commit may be unseen by a reader that looks so often, which reads everything in between.
const BOUND: Duration = Duration::from_secs(1);

/// Nothing is cached, so that every page is read again.
pub(super) fn cold() -> ReaderOptions {
    ReaderOptions {
        cache_bytes: 0,
        data_cache_bytes: 0,
        ..ReaderOptions::default()
    }
}

/// What a reader has seen of the newest states.
struct Newest {
    generation: u64,
}

impl Newest {
    /// A reader that began to look when `durable` was told shows `generation`.
    fn see(&mut self, durable: u64, generation: u64) -> Result<(), String> {
        let least = durable.max(self.generation);
        if generation < least {
            return Err(format!(
                "a reader shows generation {generation} after {least} was seen or told to be durable"
            ));
        }
        self.generation = generation;
        Ok(())
    }
}

async fn open(world: &World, process: &Process, name: Option<Vec<u8>>) -> Result<Reader, OpenError> {
    process.reads.set(process.reads.get().min(world.durable.get()));
    let options = ReaderOptions {
        snapshot: name,
        ..cold()
    };
    Reader::open(world.medium(process), world.leases(process), &options).await
}

/// Opens the newest state, again and again where a lease ends before that is done.
async fn open_newest(world: &World, process: &Process, newest: &mut Newest) -> Result<Reader, String> {
    process.reads.set(world.durable.get());
    loop {
        let durable = world.durable.get();
        match open(world, process, None).await {
            Ok(reader) => {
                newest.see(durable, reader.generation())?;
                process.reads.set(reader.generation());
                return Ok(reader);
            }
            Err(OpenError::Lease(_)) if process.may_have_lost_its_lease() => {
                time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(format!("a reader: {error}")),
        }
    }
}

/// Goes on to the newest commit, as a mount does; one that follows shows it from then on. `None` if the lease has ended, as it may.
async fn go_on(
    world: &World,
    process: &Process,
    newest: &mut Newest,
    reader: &Reader,
    random: &mut Random,
    is_followed: bool,
) -> Result<Option<Reader>, String> {
    let durable = world.durable.get();
    let newer = match reader.newer().await {
        Ok(None) => {
            newest.see(durable, reader.generation())?;
            return Ok(Some(reader.clone()));
        }
        Ok(Some(newer)) => newer,
        Err(OpenError::Lease(_)) if process.may_have_lost_its_lease() => return Ok(None),
        Err(error) => return Err(format!("generation {}: {error}", reader.generation())),
    };
    newest.see(durable, newer.generation())?;
    if is_followed {
        show(world, process, newer.generation())?;
    }
    // The older one may still be read; the lease holds both.
    if random.chance(1, 4) && !is_right(world, reader, process).await? {
        return Ok(None);
    }
    let moved = newer.let_older_go().await;
    process.reads.set(newer.generation());
    match moved {
        Err(error) if !process.may_have_lost_its_lease() => Err(format!("a lease was not moved on: {error}")),
        _ => Ok(Some(newer)),
    }
}

/// Notes what a reader that follows shows from now on, and how long it was behind.
fn show(world: &World, process: &Process, generation: u64) -> Result<(), String> {
    let now = time::now();
    let calm = world.calm_since(process);
    let mut longest = Duration::ZERO;
    world.unseen.borrow_mut().retain(|&(committed, told)| {
        let shown = committed <= generation;
        if let (true, Some(calm)) = (shown, calm) {
            longest = longest.max(now.since(told.max(calm)));
        }
        !shown
    });
    if longest > BOUND {
        return Err(format!(
            "generation {generation} was shown {longest:?} after a commit, though nothing stood still"
        ));
    }
    world.count(|seen| seen.longest_behind = seen.longest_behind.max(longest));
    Ok(())
}

/// Follows commits under its lease, takes a new one where that has ended, and reads everything of each state that it comes to.
pub(super) async fn follow(world: Rc<World>, process: Process, mut random: Random) -> Result<(), String> {
    let mut newest = Newest { generation: 1 };
    let mut reader = open_newest(&world, &process, &mut newest).await?;
    let mut shown = 0;
    while !world.is_over() {
        let looked = time::now();
        let next = go_on(&world, &process, &mut newest, &reader, &mut random, true).await?;
        reader = match next {
            Some(next) => next,
            None => {
                world.count(|seen| seen.leases_ended += 1);
                open_newest(&world, &process, &mut newest).await?
            }
        };
        show(&world, &process, reader.generation())?;
        if reader.generation() > shown {
            // If the lease ends meanwhile, the next look says so.
            is_right(&world, &reader, &process).await?;
            shown = reader.generation();
            world.count(|seen| seen.followed += 1);
        }
        time::sleep_until(looked + LOOKS_EVERY).await;
    }
    reader.close().await.ok();
    Ok(())
}

/// A state by its name, if there is one that can be had.
async fn open_named(world: &World, process: &Process, random: &mut Random) -> Result<Option<Reader>, String> {
    process.reads.set(world.durable.get());
    let name = format!("s{}", random.below(3)).into_bytes();
    match open(world, process, Some(name)).await {
        Ok(reader) => {
            world.count(|seen| seen.stays_at_names += 1);
            Ok(Some(reader))
        }
        Err(OpenError::NoSnapshot { .. }) => Ok(None),
        Err(OpenError::Lease(_)) if process.may_have_lost_its_lease() => Ok(None),
        Err(error) => Err(format!("a reader of a snapshot: {error}")),
    }
}

/// Stays on a state, then goes on to the newest under the same lease, or opens another.
pub(super) async fn stay(world: Rc<World>, process: Process, mut random: Random) -> Result<(), String> {
    let mut newest = Newest { generation: 1 };
    while !world.is_over() {
        let named = match random.chance(1, 3) {
            true => open_named(&world, &process, &mut random).await?,
            false => None,
        };
        let is_named = named.is_some();
        let mut reader = match named {
            Some(reader) => reader,
            None => open_newest(&world, &process, &mut newest).await?,
        };
        world.count(|seen| seen.stays += 1);
        loop {
            if !stay_on(&world, &process, &reader, &mut random).await? {
                world.count(|seen| seen.leases_ended += 1);
                break;
            }
            if is_named || world.is_over() || random.chance(1, 2) {
                break;
            }
            match go_on(&world, &process, &mut newest, &reader, &mut random, false).await? {
                Some(next) => reader = next,
                None => break,
            }
        }
        // A lease that is not given back ends by itself.
        if random.chance(3, 4) {
            reader.close().await.ok();
        }
    }
    Ok(())
}

/// Reads one state again and again for a while; `false` once its lease has ended.
async fn stay_on(
    world: &World,
    process: &Process,
    reader: &Reader,
    random: &mut Random,
) -> Result<bool, String> {
    let until = time::now() + millis(random, 5_000, 200_000);
    loop {
        if !is_right(world, reader, process).await? {
            return Ok(false);
        }
        if time::now() >= until || world.is_over() {
            return Ok(true);
        }
        time::sleep(millis(random, 500, 20_000)).await;
    }
}
