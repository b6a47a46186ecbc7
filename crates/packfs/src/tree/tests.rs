use super::*;
use bdev::BlockDevice;
use bdev::memory::MemoryDevice;
use foundation::{BlockCount, Random};
use std::collections::BTreeMap;

/// Of the volume.
const PAGES: u64 = 8192;

fn run<F: Future<Output = ()> + 'static>(work: impl FnOnce(Medium) -> F) {
    let simulation = reactor::sim::Simulation::new(1);
    let device = MemoryDevice::new(4096, BlockCount(PAGES)).unwrap();
    let channel = device.open_channel().unwrap();
    let future = async move { Medium::new(channel) };
    let medium = simulation.run(future);
    simulation.run(work(medium));
}

async fn commit(tree: &mut Tree, birth: u64, next_page: &mut u64) {
    let written = tree.write_out(birth, || {
        *next_page += 1;
        *next_page
    });
    for (pointer, bytes) in &written.pages {
        tree.medium
            .write_bytes(pointer.address(), bytes, false)
            .await
            .unwrap();
    }
    tree.take_replaced();
    tree.adopt(&written);
}

async fn contents(tree: &Tree) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut from = Some(Vec::new());
    while let Some(key) = from {
        let batch = tree.batch(&key).await.unwrap();
        for (key, value) in batch.cells {
            assert!(found.insert(key, value).is_none(), "a key was met twice");
        }
        from = batch.next;
    }
    found
}

fn random_key(random: &mut Random) -> Vec<u8> {
    let longest = if random.chance(1, 9) { 250 } else { 12 };
    let length = random.between(1, longest);
    let mut key: Vec<u8> = (0..length).map(|_| random.below(3) as u8).collect();
    key.insert(0, b'k');
    key
}

#[test]
fn is_an_ordered_map_through_splits_joins_and_commits() {
    for seed in 0..6 {
        run(move |medium| async move {
            let mut random = Random::from_seed(seed);
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            let cache = PageCache::new(40_000);
            let mut tree = Tree::empty(medium, cache);
            let mut page = 40;
            for birth in 1..12 {
                let growing = birth < 7;
                for _ in 0..random.below(250) {
                    let key = random_key(&mut random);
                    if random.chance(if growing { 4 } else { 1 }, 5) {
                        let value = vec![random.below(256) as u8; random.below(180) as usize];
                        let new = tree.insert(key.clone(), value.clone()).await.unwrap();
                        assert_eq!(new, model.insert(key, value).is_none());
                    } else {
                        let near = model.range(key.clone()..).next().map(|(key, _)| key.clone());
                        let key = near.unwrap_or(key);
                        assert_eq!(tree.remove(&key).await.unwrap(), model.remove(&key));
                    }
                }
                assert_eq!(contents(&tree).await, model);
                if random.chance(2, 3) {
                    commit(&mut tree, birth, &mut page).await;
                    assert_eq!(tree.changed_pages(), 0);
                    assert_eq!(contents(&tree).await, model);
                }
                for _ in 0..50 {
                    let key = random_key(&mut random);
                    assert_eq!(tree.get(&key).await.unwrap(), model.get(&key).cloned());
                    let prefix = &key[..random.below(3) as usize];
                    let first = model
                        .range(key.clone()..)
                        .next()
                        .filter(|(k, _)| k.starts_with(prefix));
                    let first = first.map(|(k, v)| (k.clone(), v.clone()));
                    assert_eq!(tree.first_with_prefix(&key, prefix).await.unwrap(), first);
                    let last = model
                        .range(..=key.clone())
                        .next_back()
                        .filter(|(k, _)| k.starts_with(prefix));
                    let last = last.map(|(k, v)| (k.clone(), v.clone()));
                    assert_eq!(tree.last_at_or_before(&key, prefix).await.unwrap(), last);
                }
            }
            for key in model.keys().cloned().collect::<Vec<_>>() {
                assert_eq!(tree.remove(&key).await.unwrap(), model.remove(&key));
            }
            assert!(contents(&tree).await.is_empty());
            assert_eq!(tree.changed_pages(), 1);
        });
    }
}

/// Of an inner page the first child goes with all that stands in it, and what follows is the first then; keys that come in between go there, until it is
/// split below its own key.
#[test]
fn what_takes_the_place_of_a_first_child_is_split_in_order() {
    for seed in foundation::seeds::from_environment(40) {
        run(move |medium| async move {
            let mut random = Random::from_seed(seed);
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            let mut tree = Tree::empty(medium, PageCache::new(1 << 20));
            let (mut page, span) = (40, 1 << random.between(7, 11));
            // Their common beginning and what tells two apart are short in some seeds and long in others.
            let (before, behind) = (random.below(120) as usize, 1 + random.below(110));
            let key = |number: u64| {
                let (before, behind) = ("b".repeat(before), "x".repeat((number % behind) as usize));
                format!("{}{before}{number:05}{behind}", number / 300 % 3).into_bytes()
            };
            for birth in 1..60 {
                let (first, count) = (random.below(span), random.below(span / 4 + 1));
                let range = first..(first + count).min(span);
                if random.chance(1, 2) {
                    for key in range.map(key) {
                        let removed = tree.remove(&key).await.unwrap();
                        assert_eq!(removed, model.remove(&key), "seed {seed}");
                    }
                } else {
                    for number in range.step_by(random.between(1, 4) as usize) {
                        let value = vec![birth as u8; random.below(300) as usize];
                        let new = tree.insert(key(number), value.clone()).await.unwrap();
                        assert_eq!(new, model.insert(key(number), value).is_none(), "seed {seed}");
                    }
                }
                if random.chance(1, 3) {
                    commit(&mut tree, birth, &mut page).await;
                }
            }
            commit(&mut tree, 60, &mut page).await;
            assert_eq!(contents(&tree).await, model, "seed {seed}");
            assert!(page < PAGES, "seed {seed}: {page} pages were written");
        });
    }
}

#[test]
fn a_removal_that_leaves_no_changed_page_is_a_change() {
    run(|medium| async move {
        let mut tree = Tree::empty(medium, PageCache::new(1 << 20));
        let key = |number: u32| format!("{number:05}").into_bytes();
        for number in 0..100 {
            tree.insert(key(number), vec![1; 900]).await.unwrap();
        }
        let mut page = 40;
        commit(&mut tree, 1, &mut page).await;
        assert!(tree.is_committed());
        let first = tree.batch(&[]).await.unwrap().cells.len() as u32;
        for number in (first..100).rev() {
            tree.remove(&key(number)).await.unwrap().unwrap();
        }
        assert_eq!(tree.changed_pages(), 0, "the first leaf is the root");
        assert!(!tree.is_committed());
        commit(&mut tree, 2, &mut page).await;
        assert!(tree.is_committed());
        assert_eq!(contents(&tree).await.len() as u32, first);
    });
}

#[test]
fn insertions_in_order_fill_pages() {
    // Other keys stand behind, many or few, as those of the other indexes do.
    for behind in [0, 1, 100] {
        run(move |medium| async move {
            let mut tree = Tree::empty(medium, PageCache::new(1 << 20));
            for number in 0..behind {
                let key = format!("z{number:05}").into_bytes();
                tree.insert(key, vec![1; 50]).await.unwrap();
            }
            for number in 0..5000u32 {
                let key = format!("a{number:05}").into_bytes();
                tree.insert(key, vec![1; 50]).await.unwrap();
            }
            let leaves: Vec<usize> = {
                let nodes = tree.nodes.iter().filter(|(_, node)| node.level == 0);
                nodes.map(|(_, node)| node.encoded_bytes()).collect()
            };
            let mean = leaves.iter().sum::<usize>() / leaves.len();
            assert!(
                mean > 3800,
                "{behind} behind: leaves are filled to {mean} bytes of 4096"
            );
        });
    }
}
