//! Proved here: a writer that is stopped at any moment, overtaken and woken again commits nothing any more and is told
//! why; what it had been told to be durable is there for its successor, whose file system stays whole. A planted bug,
//! to read the superblock before the fence, is found by the same test. A lease that cannot be renewed stops its
//! writer before it ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bdev::fence::TokenKeeper;
use foundation::Random;
use reactor::time;

use super::model::{Model, change, read_back};
use super::support::{
    Clock, Gate, GatedChannel, GatedLeases, leases, on_host, raw_medium, small, world, writer_options,
};
use crate::lease::memory::{LocalLeases, WRITER_TERM};
use crate::lease::{LeaseError, LeaseSource};
use crate::space::PlantedBug;
use crate::{
    Attributes, InodeNumber, Medium, Reader, ReaderOptions, VerifyOptions, WriteError, Writer, WriterOptions,
    format, verify,
};

/// What the first writer did.
#[derive(Default)]
pub(super) struct Deeds {
    /// Models by generation; the last may be in flight.
    history: RefCell<Vec<(u64, Model)>>,
    /// The newest generation that it was told to be durable.
    pub(super) durable: Cell<u64>,
    pub(super) commits: Cell<u64>,
    /// Whether it has changed what it was not told to be durable.
    pub(super) uncommitted: Cell<bool>,
}

impl Deeds {
    /// Of a volume that was just formatted.
    pub(super) fn begin(model: &Model) -> Rc<Self> {
        let deeds = Self::default();
        deeds.history.borrow_mut().push((1, model.clone()));
        deeds.durable.set(1);
        Rc::new(deeds)
    }
}

/// Writes until something fails, with pauses of at most so long after each commit.
pub(super) async fn write_on(
    mut writer: Writer,
    mut model: Model,
    deeds: Rc<Deeds>,
    seed: u64,
    pause: Duration,
) -> WriteError {
    let mut random = Random::from_seed(seed);
    loop {
        for _ in 0..random.between(1, 6) {
            if let Err(error) = change(&mut writer, &mut model, &mut random).await {
                return error;
            }
            deeds.uncommitted.set(!writer.is_committed());
        }
        let next = (writer.generation() + 1, model.clone());
        deeds.history.borrow_mut().push(next);
        match writer.commit().await {
            Ok(generation) => deeds.durable.set(generation),
            Err(error) => return error,
        }
        deeds.uncommitted.set(false);
        deeds.commits.set(deeds.commits.get() + 1);
        time::sleep(Duration::from_micros(random.below(pause.as_micros() as u64))).await;
    }
}

/// Who goes on where another writer was.
pub(super) struct Second {
    medium: Medium,
    leases: Rc<dyn LeaseSource>,
    writer: Writer,
    model: Model,
    /// The generation it took over.
    pub(super) found: u64,
}

impl Second {
    pub(super) async fn open(
        medium: Medium,
        leases: Rc<dyn LeaseSource>,
        deeds: &Deeds,
        options: WriterOptions,
    ) -> Result<Self, String> {
        let options = WriterOptions {
            holder: "the second writer".to_owned(),
            ..options
        };
        let opened = Writer::open(medium.clone(), leases.clone(), &options).await;
        let writer = opened.map_err(|error| format!("the second writer: {error}"))?;
        let found = writer.generation();
        let history = deeds.history.borrow();
        let known = history.iter().rfind(|(generation, _)| *generation == found);
        let (_, model) = known.ok_or_else(|| format!("generation {found} was never committed"))?;
        let model = model.clone();
        Ok(Self {
            medium,
            leases,
            writer,
            model,
            found,
        })
    }

    pub(super) async fn work(&mut self, random: &mut Random, commits: usize) -> Result<(), String> {
        for _ in 0..commits {
            for _ in 0..random.between(1, 6) {
                let changed = change(&mut self.writer, &mut self.model, random).await;
                changed.map_err(|error| format!("the second writer: {error}"))?;
            }
            let committed = self.writer.commit().await;
            committed.map_err(|error| format!("the second writer: {error}"))?;
        }
        Ok(())
    }

    pub(super) async fn check(&self) -> Result<(), String> {
        let report = verify(&self.medium, self.leases.clone(), &VerifyOptions::default()).await;
        let report = report.map_err(|error| error.to_string())?;
        if !report.is_clean() {
            return Err(format!("{:?}", report.problems));
        }
        let options = ReaderOptions::default();
        let reader = Reader::open(self.medium.clone(), self.leases.clone(), &options).await;
        let reader = reader.map_err(|error| error.to_string())?;
        if read_back(&reader).await? != self.model {
            return Err(format!("generation {} holds something else", reader.generation()));
        }
        Ok(())
    }
}

/// One story. `Ok` says how many commits the first writer made.
fn overtake(seed: u64, bug: PlantedBug) -> Result<u64, String> {
    let (simulation, host) = world(seed);
    let story = move || async move {
        let mut random = Random::from_seed(seed ^ 0x7a6e);
        let plain = raw_medium();
        let shared = LocalLeases::new();
        let options = small();
        let (process, disk, keeper) = (Gate::new(), Gate::new(), TokenKeeper::new());
        // The gate of the process is before the fence, that of its disk behind it.
        let first = plain.on(|file| {
            let slow = Rc::new(GatedChannel::new(file, disk.clone()));
            Rc::new(GatedChannel::new(keeper.over(slow), process.clone()))
        });
        let second = plain.on(|file| keeper.over(file));
        format(second.clone(), Rc::new(shared.clone()), "a formatter", &options)
            .await
            .unwrap();
        let model = Model::new(options.root);
        let deeds = Deeds::begin(&model);
        let clock = Clock::random(&mut random);
        let gated = GatedLeases::with_clock(Rc::new(shared.clone()), process.clone(), clock);
        let gated = Rc::new(gated);
        let writer = Writer::open(first, gated, &writer_options()).await.unwrap();
        let pause = Duration::from_millis(3);
        let writing = reactor::spawn(write_on(writer, model, deeds.clone(), seed, pause));

        if random.chance(1, 2) {
            disk.close_after(random.between(1, 300));
        }
        time::sleep(Duration::from_micros(random.between(2_000, 60_000))).await;
        process.close();
        // Its last renewal may have been just now.
        time::sleep(WRITER_TERM + Duration::from_secs(1)).await;
        let early = random.chance(2, 3);
        let longest = [200, 1_000, 5_000][random.below(3) as usize];
        let (after, and_after) = (random.below(longest), random.below(longest));
        drop(reactor::spawn({
            let (process, disk) = (process.clone(), disk.clone());
            async move {
                time::sleep(Duration::from_micros(after)).await;
                disk.open();
                time::sleep(Duration::from_micros(and_after)).await;
                if early {
                    process.open();
                }
            }
        }));
        let options = WriterOptions {
            bug,
            ..writer_options()
        };
        let mut second = Second::open(second, Rc::new(shared), &deeds, options).await?;
        second.work(&mut random, 3).await?;
        process.open();
        let told = time::timeout(Duration::from_secs(30), writing).await;
        let told = told.map_err(|_| "the first writer goes on for ever")?;
        match told.expect("nobody ends the first writer's task") {
            WriteError::Lease(LeaseError::TakenOver { holder }) if holder == "the second writer" => {}
            other => return Err(format!("the first writer was told: {other}")),
        }
        second.work(&mut random, 2).await?;
        second.check().await?;
        let (durable, found) = (deeds.durable.get(), second.found);
        if durable > found {
            return Err(format!(
                "generation {durable} was durable, and generation {found} was taken over"
            ));
        }
        Ok(deeds.commits.get())
    };
    on_host(&simulation, host, story).expect("the host keeps its power")
}

#[test]
fn a_writer_that_was_overtaken_commits_nothing_more() {
    let (mut commits, seeds) = (0, foundation::seeds::from_environment(150));
    for &seed in &seeds {
        commits += overtake(seed, PlantedBug::None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(
        seeds.len() < 100 || commits > seeds.len() as u64,
        "only {commits} commits"
    );
}

/// It read a page that the next writer had used again, and took that for damage.
#[test]
fn a_writer_that_reads_what_the_next_one_wrote_is_told_that_it_was_overtaken() {
    let seed = 179_588_759_772;
    overtake(seed, PlantedBug::None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

#[test]
fn a_superblock_read_before_the_fence_is_found() {
    let found = (0..400).find_map(|seed| Some((seed, overtake(seed, PlantedBug::MountBeforeFence).err()?)));
    let (seed, error) = found.expect("400 seeds find the bug");
    println!("seed {seed}: {error}");
}

#[test]
fn a_lease_that_cannot_be_renewed_stops_its_writer_in_time() {
    let (simulation, host) = world(5);
    on_host(&simulation, host, || async {
        let (plain, keeper) = (raw_medium(), TokenKeeper::new());
        let medium = plain.on(|file| keeper.over(file));
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let (masters, shared) = (Gate::new(), LocalLeases::new());
        let gated = Rc::new(GatedLeases::new(Rc::new(shared.clone()), masters.clone()));
        let mut writer = Writer::open(medium.clone(), gated, &writer_options())
            .await
            .unwrap();
        let root = InodeNumber::ROOT;
        let attributes = Attributes::default();
        // Nobody else gets it, however long the writer does nothing.
        for name in [b"a", b"b", b"c"] {
            time::sleep(WRITER_TERM * 3).await;
            let other = shared.acquire_writer("another").await;
            assert!(matches!(other, Err(LeaseError::Held { .. })), "{other:?}");
            writer.mkdir(root, name, &attributes).await.unwrap();
            writer.commit().await.unwrap();
        }
        // Masters that are away for a while do no harm.
        masters.close();
        time::sleep(WRITER_TERM / 2).await;
        masters.open();
        time::sleep(WRITER_TERM / 2).await;
        writer.mkdir(root, b"d", &attributes).await.unwrap();
        writer.commit().await.unwrap();
        masters.close();
        time::sleep(WRITER_TERM).await;
        // The device would still take its writes: it stops by itself.
        let began = time::now();
        writer
            .create_file(root, b"late", &attributes, &[1; 9000])
            .await
            .unwrap();
        let text = writer.commit().await.unwrap_err().to_string();
        assert!(
            text.contains(
                "could not be renewed: no answer came within 5 s; check that a master can be reached"
            ),
            "{text}"
        );
        assert!(
            time::now().since(began) < Duration::from_secs(6),
            "it asks once more, and that is all"
        );
        let report = verify(&medium, leases(), &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean() && report.totals.files == 0, "{report:?}");
        assert_eq!(report.totals.directories, 5);
    })
    .unwrap();
}
