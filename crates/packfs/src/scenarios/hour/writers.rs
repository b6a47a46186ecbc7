//! One writer after the other.

use std::rc::Rc;

use foundation::Random;
use reactor::JoinHandle;
use reactor::time;

use super::{PATIENCE, Process, World, millis};
use crate::files::{FileError, FileOptions, FileSystem, errno};
use crate::lease::LeaseError;
use crate::lease::memory::WRITER_TERM;
use crate::scenarios::files_model::{Files, remove, step};
use crate::scenarios::files_test::options;
use crate::{Timestamp, WriteError, WriterOptions};

/// The file system is kept so small that no change meets its end.
const INODES_MAX: usize = 60;
const CONTENT_BYTES_MAX: usize = 1 << 20;
/// Snapshots that hold more than this are deleted.
const HELD_BYTES_MAX: u64 = 10 << 20;

/// A writer and what it does.
struct Life {
    number: u64,
    process: Process,
    ends: JoinHandle<Result<(), String>>,
}

fn name_of(number: u64) -> String {
    format!("writer {number}")
}

/// Has one writer after the other, until the hour is over; each waits until the one before has handed over or was overtaken.
pub(super) async fn succeed(world: Rc<World>, mut random: Random) {
    let done = succeed_each(&world, &mut random).await;
    world.note(done);
}

async fn succeed_each(world: &Rc<World>, random: &mut Random) -> Result<(), String> {
    let mut life = begin(world, 1, random).await?;
    while !world.is_over() {
        time::sleep(millis(random, 10_000, 150_000)).await;
        match random.below(4) {
            // Stopped for a while, and nobody wants the volume.
            0 => life.process.stop_for(millis(random, 100, 15_000), true).await,
            1 => life = follow_on(world, life, random).await?,
            // Stopped, and overtaken unless it goes on before its lease ends.
            _ => {
                let process = life.process.clone();
                let longest = WRITER_TERM.as_millis() as u64 * 2;
                let pause = millis(random, 5_000, longest);
                let whole = random.chance(2, 3);
                drop(reactor::spawn(
                    async move { process.stop_for(pause, whole).await },
                ));
                life = follow_on(world, life, random).await?;
            }
        }
    }
    ended(life).await
}

/// A successor in place of a writer, which ends.
async fn follow_on(world: &Rc<World>, life: Life, random: &mut Random) -> Result<Life, String> {
    let next = begin(world, life.number + 1, random).await?;
    ended(life).await?;
    Ok(next)
}

async fn ended(life: Life) -> Result<(), String> {
    let name = name_of(life.number);
    let done = time::timeout(PATIENCE, life.ends).await;
    let done = done.map_err(|_| format!("{name} goes on for ever"))?;
    done.expect("nobody ends a writer's task")
        .map_err(|error| format!("{name}: {error}"))
}

/// A writer that asks for the volume, once it has it.
async fn begin(world: &Rc<World>, number: u64, random: &mut Random) -> Result<Life, String> {
    let process = Process::new();
    let own = FileOptions {
        writer: WriterOptions {
            holder: name_of(number),
            take_over: Some(PATIENCE),
            // It does so itself, as a mount does.
            hands_over: false,
            bug: world.bug,
            ..options().writer
        },
        ..options()
    };
    let (medium, leases) = (world.medium(&process), world.leases(&process));
    let opened = FileSystem::open(medium, leases, &own).await;
    let mut files = opened.map_err(|error| format!("{}: {error}", name_of(number)))?;
    files.plant(world.bug);
    let (found, durable) = (files.generation(), world.durable.get());
    if found < durable {
        return Err(format!(
            "generation {durable} was durable, and {} found {found}",
            name_of(number)
        ));
    }
    world.writer.set((number, found));
    // What the one before had begun and not committed will never be.
    let model = {
        let mut history = world.history.borrow_mut();
        history.states.retain(|&first, _| first <= found);
        history.at(found).reopened_whole()
    };
    let writing = write(
        world.clone(),
        process.clone(),
        number,
        files,
        model,
        random.fork(),
    );
    let ends = reactor::spawn(writing);
    Ok(Life {
        number,
        process,
        ends,
    })
}

/// Writes until it is the writer no more, or the hour is over.
async fn write(
    world: Rc<World>,
    process: Process,
    number: u64,
    mut files: FileSystem,
    mut model: Files,
    mut random: Random,
) -> Result<(), String> {
    loop {
        if let Err(error) = work(&world, number, &mut files, &mut model, &mut random).await? {
            return judge(&world, &process, number, &error);
        }
        if files.hand_over().await {
            world.count(|seen| seen.handed_over += 1);
            return Ok(());
        }
        if world.is_over() {
            // What is open and has no name goes with its last user.
            return match files.close().await {
                // The masters are away: the lease ends by itself.
                Ok(()) | Err(LeaseError::Unreachable { .. }) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
        }
        time::sleep(millis(&mut random, 10, 9_000)).await;
    }
}

/// Some changes and one commit. The inner failure is what ended it, for `judge`.
async fn work(
    world: &World,
    number: u64,
    files: &mut FileSystem,
    model: &mut Files,
    random: &mut Random,
) -> Result<Result<(), FileError>, String> {
    let generation = files.generation();
    for _ in 0..random.between(1, 14) {
        if let Err(error) = change(files, model, random).await {
            return Ok(Err(error));
        }
        if files.generation() != generation {
            return Err("the volume is too small for this test".to_owned());
        }
    }
    // What one that was overtaken tries to commit must never be there.
    if world.writer.get().0 == number {
        world.will_be(generation + 1, model);
    }
    let done = make_durable(world, files, random).await;
    let (writer, found) = world.writer.get();
    let durable = files.generation();
    if writer != number && durable > found {
        return Err(format!(
            "it committed generation {durable} after {} had found {found}",
            name_of(writer)
        ));
    }
    if durable > world.durable.get() {
        world.durable.set(durable);
        world.unseen.borrow_mut().push((durable, time::now()));
        world.count(|seen| seen.commits += 1);
    }
    // One that was overtaken knows of an older generation than is kept by now.
    let oldest = world.readers.iter().map(|reader| reader.reads.get()).min();
    let oldest = oldest.expect("there are readers").min(world.durable.get());
    world.history.borrow_mut().forget_before(oldest);
    Ok(done)
}

/// One change, or a removal where there is much.
async fn change(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Result<(), FileError> {
    let content: usize = model.tree.nodes.values().map(|node| node.bytes.len()).sum();
    match content > CONTENT_BYTES_MAX || model.tree.nodes.len() > INODES_MAX {
        true => remove(files, model, random).await,
        false => step(files, model, random).await,
    }
}

/// Commits, by itself or with what else commits. The state is the same for all generations that come of it.
async fn make_durable(world: &World, files: &mut FileSystem, random: &mut Random) -> Result<(), FileError> {
    let name = format!("s{}", random.below(3)).into_bytes();
    if files.statistics().held.0 > HELD_BYTES_MAX {
        for snapshot in files.snapshots().await? {
            files.delete_snapshot(&snapshot.name).await?;
            world.count(|seen| seen.snapshots_deleted += 1);
        }
    }
    match random.below(30) {
        0 | 1 => match files.create_snapshot(&name, Timestamp::default()).await {
            Ok(snapshot) => {
                world.history.borrow_mut().named.push(snapshot.generation);
                world.count(|seen| seen.snapshots += 1);
            }
            Err(error) if error.errno() == errno::EEXIST => {}
            Err(error) => return Err(error),
        },
        2..=4 => match files.delete_snapshot(&name).await {
            Ok(()) => world.count(|seen| seen.snapshots_deleted += 1),
            Err(error) if error.errno() == errno::ENOENT => {}
            Err(error) => return Err(error),
        },
        5 => {
            let before = files.compaction().passes;
            let after = files.compact(|_| {}).await?.passes;
            world.count(|seen| seen.compactions += after - before);
        }
        _ => {}
    }
    files.commit().await.map(drop)
}

/// Whether a writer may have ended so.
fn judge(world: &World, process: &Process, number: u64, error: &FileError) -> Result<(), String> {
    let overtaken = world.writer.get().0 > number;
    match error {
        FileError::Write(WriteError::Lease(LeaseError::HandedOver { .. })) => Err(format!(
            "it was handed over with changes that were not durable: {error}"
        )),
        FileError::Write(WriteError::Lease(LeaseError::TakenOver { holder }))
            if *holder == name_of(number + 1) =>
        {
            world.count(|seen| seen.overtaken += 1);
            Ok(())
        }
        // It stopped by itself, or read what another has written over since.
        FileError::Write(_) if overtaken || process.stopped.get() => {
            world.count(|seen| seen.overtaken += 1);
            Ok(())
        }
        error => Err(error.to_string()),
    }
}
