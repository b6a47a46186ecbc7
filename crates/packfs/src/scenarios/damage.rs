//! Proved here: bits flipped anywhere give the right bytes or an error that names file and block, never wrong bytes
//! and never a panic; the rest stays readable; another copy is asked where there is one.

use std::path::Path;
use std::rc::Rc;

use bdev::fence::TokenKeeper;
use bdev::memory::MemoryDevice;
use bdev::{BlockDevice, ChannelExt};
use foundation::{BlockCount, Lba, Random};

use super::model::{Model, change, read_back};
use super::support::{DISK, Second, VOLUME_BYTES, leases, medium, on_host, small, world, writer_options};
use crate::format::SUPERBLOCK_ADDRESSES;
use crate::format::superblock::Superblock;
use crate::fsck::{FsckOptions, fsck};
use crate::lease::memory::LocalLeases;
use crate::{
    InodeNumber, Kind, Medium, ReadError, Reader, ReaderOptions, Target, VerifyOptions, Writer, format,
    verify,
};

async fn fill(seed: u64) -> Model {
    let mut random = Random::from_seed(seed);
    let medium = medium();
    format(medium.clone(), leases(), "a formatter", &small())
        .await
        .unwrap();
    let mut writer = Writer::open(medium, Rc::new(LocalLeases::new()), &writer_options())
        .await
        .unwrap();
    let mut model = Model::new(small().root);
    for _ in 0..3 {
        for _ in 0..60 {
            change(&mut writer, &mut model, &mut random).await.unwrap();
        }
        writer.commit().await.unwrap();
    }
    model
}

/// Files right and files refused; panics on wrong bytes.
async fn read_all(model: &Model) -> (usize, usize) {
    let options = ReaderOptions::default();
    let Ok(reader) = Reader::open(medium(), Rc::new(LocalLeases::new()), &options).await else {
        return (0, model.names.len());
    };
    let files = model
        .names
        .iter()
        .filter(|(_, inode)| model.nodes[inode].kind != Kind::Directory);
    let files: Vec<_> = files.collect();
    let targets: Vec<_> = files.iter().map(|(path, _)| Target::Path(path)).collect();
    let (mut right, mut refused) = (0, 0);
    for (content, (path, inode)) in reader.read_many(&targets).await.into_iter().zip(files) {
        match content {
            Ok(content) => {
                assert!(content.to_vec() == model.nodes[inode].bytes, "wrong bytes");
                right += 1;
            }
            Err(ReadError::NotFound { .. } | ReadError::LeaseEnded) => {
                panic!("a damaged file is not missing")
            }
            Err(error) => {
                let path = crate::name::Shown::new(path).to_string();
                assert!(error.to_string().contains(&path), "{error} does not name {path}");
                refused += 1;
            }
        }
    }
    (right, refused)
}

#[test]
fn flipped_bits_give_errors_and_never_wrong_bytes() {
    let (mut right, mut refused, mut noticed) = (0, 0, 0);
    for seed in 0..20 {
        let (simulation, host) = world(seed);
        let model = on_host(&simulation, host, || fill(1)).unwrap();
        let disk = simulation.disk(host, Path::new(DISK));
        let mut random = Random::from_seed(seed);
        let mut flipped = 0;
        while flipped < 40 {
            let at = random.below(VOLUME_BYTES);
            let byte = disk.read(at, 1)[0];
            if byte != 0 {
                disk.damage(at, &[byte ^ (1 << random.below(8))]);
                flipped += 1;
            }
        }
        let found = on_host(&simulation, host, move || async move {
            let (right, refused) = read_all(&model).await;
            let report = verify(&medium(), leases(), &VerifyOptions::default()).await;
            (right, refused, report.map(|report| report.is_clean()))
        });
        let (r, x, clean) = found.unwrap();
        if x > 0 {
            assert!(!matches!(clean, Ok(true)), "verify overlooks what reads refuse");
            noticed += 1;
        }
        right += r;
        refused += x;
    }
    assert!(
        right > 300 && refused > 50 && noticed > 10,
        "{right} right, {refused} refused, {noticed}"
    );
}

#[test]
fn a_damaged_extent_costs_its_file_only() {
    let (simulation, host) = world(1);
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, || async {
        let medium = medium();
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let mut writer = Writer::open(medium, Rc::new(LocalLeases::new()), &writer_options())
            .await
            .unwrap();
        for index in 0..20u8 {
            let name = format!("file {index}");
            let attributes = small().root;
            let bytes = [index + 1; 3000];
            let made = writer
                .create_file(InodeNumber::ROOT, name.as_bytes(), &attributes, &bytes)
                .await;
            made.unwrap();
        }
        writer.commit().await.unwrap();
    })
    .unwrap();
    // The first segment begins behind the superblocks; files of 3000 bytes lie back to back, five a stripe unit.
    let place = 128 * 1024 + 3 * 3000 + 17;
    assert_eq!(disk.read(place, 1), [4]);
    disk.damage(place, &[99]);
    on_host(&simulation, host, || async {
        let reader = Reader::open(medium(), Rc::new(LocalLeases::new()), &ReaderOptions::default()).await.unwrap();
        let names: Vec<String> = (0..20).map(|index| format!("file {index}")).collect();
        let targets: Vec<_> = names.iter().map(|name| Target::Path(name.as_bytes())).collect();
        for (index, content) in reader.read_many(&targets).await.into_iter().enumerate() {
            match content {
                Ok(content) => assert!(index != 3 && content.to_vec() == [index as u8 + 1; 3000]),
                Err(error) => {
                    assert_eq!(index, 3);
                    let text = "file 3: the 3000 bytes at block 34 of the volume are damaged in every copy; restore \
                                the file";
                    assert_eq!(error.to_string(), text);
                }
            }
        }
        assert!(reader.statistics().reads < 20, "neighbours are not joined");
        let report = verify(&medium(), leases(), &VerifyOptions::default()).await.unwrap();
        assert_eq!(report.problems.len(), 1);
        assert!(report.problems[0].to_string().starts_with("file 3:"));
    })
    .unwrap();
}

#[test]
fn another_copy_gives_the_right_bytes() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        let device = || {
            let device = MemoryDevice::new(512, BlockCount(16 << 10)).unwrap();
            device.open_channel().unwrap()
        };
        let (first, second) = (device(), device());
        let volume = TokenKeeper::new().over(first.clone());
        format(Medium::new(volume.clone()), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let opened = Writer::open(Medium::new(volume), leases.clone(), &writer_options()).await;
        let mut writer = opened.unwrap();
        let mut random = Random::from_seed(8);
        let mut model = Model::new(small().root);
        for _ in 0..150 {
            change(&mut writer, &mut model, &mut random).await.unwrap();
        }
        writer.commit().await.unwrap();
        let pool = reactor::BufferPool::current();
        for block in 0..(16 << 10) / 256 {
            let lba = Lba(block * 256);
            let (status, mut buffer) = first.read(lba, pool.allocate(256 * 512).await.unwrap()).await;
            status.unwrap();
            let whole = {
                let mut whole = pool.allocate(256 * 512).await.unwrap();
                whole.copy_from_slice(&buffer);
                whole.freeze()
            };
            second.write(lba, whole).await.unwrap();
            // All but the superblocks is damaged on the first copy.
            if block > 0 {
                buffer.iter_mut().step_by(700).for_each(|byte| *byte ^= 0x10);
                first.write(lba, buffer.freeze()).await.unwrap();
            }
        }
        let alone = Reader::open(
            Medium::new(first.clone()),
            leases.clone(),
            &ReaderOptions::default(),
        )
        .await;
        assert!(read_back(&alone.unwrap()).await.is_err());
        let medium = Medium::new(first.clone()).with_copies(Rc::new(Second::new(second.clone())));
        let reader = Reader::open(medium.clone(), leases.clone(), &ReaderOptions::default())
            .await
            .unwrap();
        assert!(read_back(&reader).await.unwrap() == model);
        let with_content = VerifyOptions {
            read_content: true,
            ..VerifyOptions::default()
        };
        let report = verify(&medium, leases.clone(), &with_content).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        // Nor is the newest commit lost with the superblock that has it.
        let generation = reader.generation();
        let mut torn = None;
        for address in SUPERBLOCK_ADDRESSES {
            let lba = Lba(address / 512);
            let (_, mut buffer) = first.read(lba, pool.allocate(4096).await.unwrap()).await;
            if Superblock::decode(&buffer, address).is_ok_and(|found| found.generation == generation) {
                buffer[100] ^= 1;
                torn = Some((lba, buffer.freeze()));
            }
        }
        let (lba, bytes) = torn.expect("the newest superblock is on the first copy");
        first.write(lba, bytes).await.unwrap();
        let alone = Medium::new(first);
        let older = Reader::open(alone, leases.clone(), &ReaderOptions::default()).await;
        assert!(older.is_err() || older.is_ok_and(|reader| reader.generation() < generation));
        let reader = Reader::open(medium.clone(), leases.clone(), &ReaderOptions::default())
            .await
            .unwrap();
        assert_eq!(reader.generation(), generation);
        let report = fsck(&medium, leases, &FsckOptions::default(), &mut |_| {})
            .await
            .unwrap();
        assert_eq!(report.superblock, None);
        assert!(report.is_clean());
    })
    .unwrap();
}
