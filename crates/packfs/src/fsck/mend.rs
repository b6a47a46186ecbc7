//! Making contents agree with themselves: pure. What nothing leads to gets a name in `lost+found`; nothing that has
//! content is dropped.

use std::collections::{BTreeMap, BTreeSet};

use super::contents::{Contents, Groups, Place, placed};
use super::gather::{LostKeys, may_be_lost};
use crate::format::entry::{Attributes, Entry, Inode, Kind, Layout};
use crate::format::extent::Extent;
use crate::format::key::{InodeNumber, Key, entry_key};
use crate::name::Shown;

/// The directory for what nothing leads to.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Where an extent lies whose place was lost: outside of every volume, so that reading it is an error and not zeros.
const NOWHERE: u64 = 1 << 62;

/// What was done and what is gone.
#[derive(Default)]
pub(super) struct Told {
    pub(super) repaired: Vec<String>,
    pub(super) lost: Vec<String>,
}

/// Mends everything that one look at the contents can.
pub(super) fn mend(contents: &mut Contents, lost: &[LostKeys], told: &mut Told) {
    number_inodes_once(contents, told);
    root(contents, told);
    links(contents, lost, told);
    entries_by_second_index(contents, lost, told);
    extents_without_inode(contents, told);
    directories_of_entries(contents, told);
    names_of_inodes(contents, told);
    circles(contents, told);
    cookies(contents, told);
    count_links(contents, told);
    attributes_without_inode(contents, told);
    extents_in_order(contents, lost, told);
    super::quotas::recount(contents, told);
}

fn new_inode(number: InodeNumber, kind: Kind, mode: u32) -> Inode {
    Inode {
        number,
        kind,
        attributes: Attributes {
            mode,
            ..Attributes::default()
        },
        links: 1,
        size: 0,
        layout: Layout::Inline(Vec::new()),
    }
}

/// An inode for what asks for one and has only a number.
pub(super) fn unnamed() -> Inode {
    new_inode(InodeNumber(0), Kind::File, 0)
}

/// The embedded inode of an entry.
fn embedded(entry: &Entry) -> Option<&Inode> {
    match entry {
        Entry::Embedded(inode) => Some(inode),
        Entry::Link { .. } => None,
    }
}

/// Each number belongs to one inode: the one that the second index knows, or that stands under its own key.
fn number_inodes_once(contents: &mut Contents, told: &mut Told) {
    let mut places: BTreeMap<InodeNumber, Vec<Place>> = BTreeMap::new();
    for (place, entry) in &contents.entries {
        if let Some(inode) = embedded(entry) {
            places.entry(inode.number).or_default().push(place.clone());
        }
    }
    for (number, places) in places {
        let taken = contents.own.contains_key(&number) || number == InodeNumber::ROOT;
        let known = contents.places.get(&number.0);
        let keeper = match taken {
            true => None,
            false => known
                .filter(|place| places.contains(place))
                .or(places.first())
                .cloned(),
        };
        for place in places {
            if Some(&place) == keeper.as_ref() {
                continue;
            }
            let fresh = InodeNumber(contents.fresh());
            let Some(Entry::Embedded(inode)) = contents.entries.get_mut(&place) else {
                continue;
            };
            inode.number = fresh;
            let name = Shown::new(&place.1);
            told.repaired.push(format!(
                "\"{name}\" in directory {} had the number {number} of another inode and is inode {fresh} now",
                place.0
            ));
            if let Some(groups) = contents.mapped.get(&number).cloned() {
                contents.mapped.insert(fresh, groups);
            }
        }
    }
}

/// The root directory is there and is one.
fn root(contents: &mut Contents, told: &mut Told) {
    match contents.own.get(&InodeNumber::ROOT).map(|inode| inode.kind) {
        Some(Kind::Directory) => return,
        Some(_) => {
            let fresh = InodeNumber(contents.fresh());
            let mut inode = contents
                .own
                .remove(&InodeNumber::ROOT)
                .expect("it was just found");
            inode.number = fresh;
            inode.links = inode.links.max(1);
            contents.own.insert(fresh, inode);
            if let Some(groups) = contents.mapped.remove(&InodeNumber::ROOT) {
                contents.mapped.insert(fresh, groups);
            }
        }
        None => {}
    }
    let made = new_inode(InodeNumber::ROOT, Kind::Directory, 0o755);
    contents.own.insert(InodeNumber::ROOT, made);
    told.repaired
        .push("the root directory was made anew: its mode, owner and times are lost".to_owned());
}

/// Each link leads to an inode of its own key and kind.
fn links(contents: &mut Contents, lost: &[LostKeys], told: &mut Told) {
    let mut at: BTreeMap<InodeNumber, Place> = BTreeMap::new();
    for (place, entry) in &contents.entries {
        if let Some(inode) = embedded(entry) {
            at.insert(inode.number, place.clone());
        }
    }
    let linked: Vec<(Place, InodeNumber, Kind)> = contents
        .entries
        .iter()
        .filter_map(|(place, entry)| match entry {
            Entry::Link { inode, kind, .. } => Some((place.clone(), *inode, *kind)),
            Entry::Embedded(_) => None,
        })
        .collect();
    for (place, number, kind) in linked {
        if !contents.own.contains_key(&number) {
            if let Some(other) = at.remove(&number) {
                let link = Entry::Link {
                    inode: number,
                    kind,
                    cookie: number.0,
                };
                if let Some(Entry::Embedded(inode)) = contents.entries.insert(other, link) {
                    contents.own.insert(number, inode);
                }
                told.repaired.push(format!(
                    "inode {number} has several names and stands under its own key now"
                ));
            } else if contents.mapped.contains_key(&number) && kind == Kind::File {
                contents.own.insert(number, new_inode(number, kind, 0o600));
                told.repaired.push(format!(
                    "inode {number} was made anew from its extents: its mode, owner, times and end are lost"
                ));
            } else {
                contents.entries.remove(&place);
                let name = Shown::new(&place.1);
                let why = match may_be_lost(lost, &Key::Inode(number).encode()) {
                    true => "stood in a damaged page",
                    false => "does not exist",
                };
                told.lost.push(format!(
                    "\"{name}\" in directory {}: its inode {number} {why}",
                    place.0
                ));
                continue;
            }
        }
        let right = contents.own[&number].kind;
        if right != kind
            && let Some(Entry::Link { kind, .. }) = contents.entries.get_mut(&place)
        {
            *kind = right;
            let name = Shown::new(&place.1);
            told.repaired.push(format!(
                "\"{name}\" in directory {} had another kind than its inode",
                place.0
            ));
        }
    }
}

/// Entries that are lost and of which the second index still has the name.
fn entries_by_second_index(contents: &mut Contents, lost: &[LostKeys], told: &mut Told) {
    let mut cookies: BTreeSet<u64> = contents.entries.values().map(Entry::cookie).collect();
    cookies.extend(contents.inodes().map(|inode| inode.number.0));
    let parents: BTreeSet<InodeNumber> = contents.entries.keys().map(|(directory, _)| *directory).collect();
    // A directory that has lost its last child is still where others say they stand.
    let named: BTreeSet<InodeNumber> = contents
        .places
        .values()
        .map(|(directory, _)| *directory)
        .collect();
    for (cookie, place) in std::mem::take(&mut contents.places) {
        let links = contents
            .links
            .range((cookie, InodeNumber(0))..=(cookie, InodeNumber(u64::MAX)));
        let link = links
            .map(|(_, inode)| *inode)
            .find(|inode| contents.own.contains_key(inode));
        let stands = contents.entries.contains_key(&place);
        let name = Shown::new(&place.1);
        let number = InodeNumber(cookie);
        if stands || !may_be_lost(lost, &entry_key(place.0, &place.1)) {
            continue;
        }
        if let Some(inode) = link {
            let taken = contents.entries.values().any(|entry| entry.cookie() == cookie);
            if taken {
                continue;
            }
            let kind = contents.own[&inode].kind;
            let entry = Entry::Link { inode, kind, cookie };
            contents.entries.insert(place.clone(), entry);
            told.repaired.push(format!(
                "the name \"{name}\" in directory {} of inode {inode} came back from the second index",
                place.0
            ));
        } else if cookies.contains(&cookie) {
            continue;
        } else if parents.contains(&number) || named.contains(&number) {
            let inode = new_inode(number, Kind::Directory, 0o755);
            told.repaired.push(format!(
                "the directory \"{name}\" in directory {} was made anew: its mode, owner and times are lost",
                place.0
            ));
            contents.entries.insert(place, Entry::Embedded(inode));
        } else if contents.mapped.contains_key(&number) {
            let mut inode = new_inode(number, Kind::File, 0o600);
            inode.layout = Layout::Mapped;
            told.repaired.push(format!(
                "the file \"{name}\" in directory {} was made anew from its extents: its mode, owner, times and end are \
                 lost",
                place.0
            ));
            contents.entries.insert(place, Entry::Embedded(inode));
        } else {
            told.lost.push(format!(
                "\"{name}\" in directory {} (inode {cookie}): its entry stood in a damaged page",
                place.0
            ));
        }
    }
}

/// Extents that nothing leads to become files.
fn extents_without_inode(contents: &mut Contents, told: &mut Told) {
    let layouts: BTreeMap<InodeNumber, bool> = contents
        .inodes()
        .map(|inode| (inode.number, inode.layout == Layout::Mapped))
        .collect();
    let numbers: Vec<InodeNumber> = contents.mapped.keys().copied().collect();
    for number in numbers {
        match layouts.get(&number) {
            Some(true) => {}
            Some(false) => {
                // An inode that was made anew from its extents only has to say so.
                if let Some(inode) = contents
                    .own
                    .get_mut(&number)
                    .filter(|inode| inode.size == 0 && inode.kind == Kind::File)
                {
                    inode.layout = Layout::Mapped;
                    continue;
                }
                let groups = contents.mapped.remove(&number).expect("it was just listed");
                found_extents(contents, None, groups, number, told);
            }
            None => {
                let groups = contents.mapped.remove(&number).expect("it was just listed");
                found_extents(contents, Some(number), groups, number, told);
            }
        }
    }
    // The reverse: content under keys of which there are none is a hole, or lost; that is seen when they are ordered.
}

/// A file in `lost+found` for extents.
fn found_extents(
    contents: &mut Contents,
    number: Option<InodeNumber>,
    groups: Groups,
    of: InodeNumber,
    told: &mut Told,
) {
    let number = number.unwrap_or_else(|| InodeNumber(contents.fresh()));
    let mut inode = new_inode(number, Kind::File, 0o600);
    inode.layout = Layout::Mapped;
    contents.mapped.insert(number, groups);
    let name = put_into_lost_and_found(contents, number, Entry::Embedded(inode), told);
    told.repaired.push(format!(
        "extents of inode {of} that no inode leads to are the file lost+found/{name} now"
    ));
}

/// Names an entry in `lost+found`; gives the name.
fn put_into_lost_and_found(
    contents: &mut Contents,
    number: InodeNumber,
    entry: Entry,
    told: &mut Told,
) -> String {
    let directory = lost_and_found(contents, told);
    let mut name = format!("#{number}");
    while contents
        .entries
        .contains_key(&(directory, name.clone().into_bytes()))
    {
        name.push('+');
    }
    contents
        .entries
        .insert((directory, name.clone().into_bytes()), entry);
    name
}

fn lost_and_found(contents: &mut Contents, told: &mut Told) -> InodeNumber {
    let mut name = LOST_AND_FOUND.to_vec();
    loop {
        match contents.entries.get(&(InodeNumber::ROOT, name.clone())) {
            Some(Entry::Embedded(inode)) if inode.kind == Kind::Directory => return inode.number,
            Some(_) => name.push(b'+'),
            None => break,
        }
    }
    let number = InodeNumber(contents.fresh());
    let inode = new_inode(number, Kind::Directory, 0o700);
    let place = (InodeNumber::ROOT, name);
    told.repaired
        .push(format!("the directory \"{}\" was made", Shown::new(&place.1)));
    contents.entries.insert(place, Entry::Embedded(inode));
    number
}

/// Every entry stands in a directory.
fn directories_of_entries(contents: &mut Contents, told: &mut Told) {
    let kinds: BTreeMap<InodeNumber, Kind> = contents
        .inodes()
        .map(|inode| (inode.number, inode.kind))
        .collect();
    let parents: BTreeSet<InodeNumber> = contents.entries.keys().map(|(directory, _)| *directory).collect();
    for parent in parents {
        match kinds.get(&parent) {
            Some(Kind::Directory) => {}
            None => {
                let inode = new_inode(parent, Kind::Directory, 0o755);
                let name = put_into_lost_and_found(contents, parent, Entry::Embedded(inode), told);
                told.repaired.push(format!(
                    "what stood in the lost directory {parent} stands in lost+found/{name} now"
                ));
            }
            Some(_) => {
                let fresh = InodeNumber(contents.fresh());
                let inode = new_inode(fresh, Kind::Directory, 0o755);
                let moved: Vec<Place> = contents
                    .entries
                    .range((parent, Vec::new())..)
                    .take_while(|((directory, _), _)| *directory == parent)
                    .map(|(place, _)| place.clone())
                    .collect();
                for place in moved {
                    let entry = contents.entries.remove(&place).expect("it was just listed");
                    contents.entries.insert((fresh, place.1), entry);
                }
                let name = put_into_lost_and_found(contents, fresh, Entry::Embedded(inode), told);
                told.repaired.push(format!(
                    "what stood in inode {parent}, which is no directory, stands in lost+found/{name} now"
                ));
            }
        }
    }
}

/// Inodes under their own keys have names; those that lost their last one while they were open go.
fn names_of_inodes(contents: &mut Contents, told: &mut Told) {
    let mut names: BTreeMap<InodeNumber, Vec<Place>> = BTreeMap::new();
    for (place, entry) in &contents.entries {
        names.entry(entry.inode()).or_default().push(place.clone());
    }
    let numbers: Vec<(InodeNumber, Kind, u32)> = contents
        .own
        .values()
        .map(|inode| (inode.number, inode.kind, inode.links))
        .collect();
    for (number, kind, links) in numbers {
        let places = names.get(&number).map_or(&[][..], Vec::as_slice);
        let root = number == InodeNumber::ROOT;
        if kind == Kind::Directory && places.len() > usize::from(!root) {
            for place in &places[usize::from(!root)..] {
                contents.entries.remove(place);
                told.repaired.push(format!(
                    "the second name \"{}\" (in directory {}) of directory {number} was taken out",
                    Shown::new(&place.1),
                    place.0
                ));
            }
        }
        if root || !places.is_empty() {
            if contents.orphans.remove(&number) {
                told.repaired.push(format!(
                    "inode {number} has a name and is off the list of orphans"
                ));
            }
        } else if links == 0 && kind != Kind::Directory {
            contents.own.remove(&number);
            contents.mapped.remove(&number);
            contents.extended.retain(|(owner, _), _| *owner != number);
            told.repaired.push(format!(
                "inode {number}, which lost its last name while it was open, was freed"
            ));
        } else {
            let cookie = contents.fresh();
            let entry = Entry::Link {
                inode: number,
                kind,
                cookie,
            };
            let name = put_into_lost_and_found(contents, number, entry, told);
            told.repaired.push(format!(
                "inode {number}, which no name leads to, is lost+found/{name} now"
            ));
        }
    }
    contents.orphans.clear();
}

/// Every directory can be reached from the root.
fn circles(contents: &mut Contents, told: &mut Told) {
    let mut places: BTreeMap<InodeNumber, Place> = BTreeMap::new();
    for (place, entry) in &contents.entries {
        if entry.kind() == Kind::Directory {
            places.insert(entry.inode(), place.clone());
        }
    }
    let mut reached = BTreeSet::from([InodeNumber::ROOT]);
    for start in places.keys().copied().collect::<Vec<_>>() {
        let mut way = BTreeSet::new();
        let mut at = start;
        while !reached.contains(&at) && way.insert(at) {
            match places.get(&at) {
                Some((parent, _)) => at = *parent,
                None => break,
            }
        }
        if !reached.contains(&at) {
            // It came round: one of the circle moves, and so the others hang from it.
            let place = places[&at].clone();
            let entry = contents.entries.remove(&place).expect("it was just listed");
            let name = put_into_lost_and_found(contents, at, entry, told);
            told.repaired.push(format!(
                "directory {at}, which stood in itself, is lost+found/{name} now"
            ));
        }
        reached.extend(way);
    }
}

/// Each cookie belongs to one name; that of an embedded inode is its number, and nobody else's.
fn cookies(contents: &mut Contents, told: &mut Told) {
    let numbers: BTreeSet<u64> = contents.inodes().map(|inode| inode.number.0).collect();
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    for (place, entry) in &contents.entries {
        if let Entry::Link { inode, cookie, .. } = entry {
            let own = inode.0 == *cookie;
            if (numbers.contains(cookie) && !own) || !used.insert(*cookie) {
                wrong.push(place.clone());
            }
        }
    }
    for place in wrong {
        let fresh = contents.fresh();
        if let Some(Entry::Link { cookie, .. }) = contents.entries.get_mut(&place) {
            *cookie = fresh;
        }
        told.repaired.push(format!(
            "\"{}\" in directory {} had the cookie of another name",
            Shown::new(&place.1),
            place.0
        ));
    }
}

fn count_links(contents: &mut Contents, told: &mut Told) {
    let mut counted: BTreeMap<InodeNumber, u32> = BTreeMap::from([(InodeNumber::ROOT, 1)]);
    for entry in contents.entries.values() {
        *counted.entry(entry.inode()).or_default() += 1;
    }
    contents.for_each_inode(|inode, _| {
        let right = counted.get(&inode.number).copied().unwrap_or(0);
        if inode.links != right {
            told.repaired.push(format!(
                "inode {} has {right} names, and counted {}",
                inode.number, inode.links
            ));
            inode.links = right;
        }
    });
}

fn attributes_without_inode(contents: &mut Contents, told: &mut Told) {
    let numbers: BTreeSet<InodeNumber> = contents.inodes().map(|inode| inode.number).collect();
    contents.extended.retain(|(owner, name), _| {
        let kept = numbers.contains(owner);
        if !kept {
            told.lost.push(format!(
                "the extended attribute \"{}\" of inode {owner}, which does not exist",
                Shown::new(name)
            ));
        }
        kept
    });
}

/// The extents of a file follow each other, and what stands in none is a hole only where none was lost.
fn extents_in_order(contents: &mut Contents, lost: &[LostKeys], told: &mut Told) {
    let mut found: Vec<(InodeNumber, Groups)> = Vec::new();
    let mut gone: Vec<(InodeNumber, u64, u64)> = Vec::new();
    let mut nowhere = NOWHERE;
    contents.for_each_inode(|inode, groups| {
        if inode.layout != Layout::Mapped {
            return;
        }
        let own = groups.get_or_insert_default();
        let mut reached = 0;
        let mut beside = Groups::new();
        let mut holes: Vec<(u64, u64)> = Vec::new();
        for (offset, extents) in std::mem::take(own) {
            let length: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
            if offset < reached {
                beside.insert(offset, extents);
                continue;
            }
            if offset > reached {
                holes.push((reached, offset));
            }
            reached = offset + length;
            own.insert(offset, extents);
        }
        if reached > inode.size {
            told.repaired.push(format!(
                "inode {} has {reached} bytes of content, and counted {}",
                inode.number, inode.size
            ));
            inode.size = reached;
        } else if reached < inode.size {
            holes.push((reached, inode.size));
        }
        for (from, to) in holes {
            if !group_may_be_lost(lost, inode.number, from, to) {
                continue;
            }
            gone.push((inode.number, from, to));
            let mut at = from;
            while at < to {
                // Many of these would be a burden, so they are as long as an extent can say.
                let length = (to - at).min(u64::from(u32::MAX) / 4096 * 4096) as u32;
                let extent = Extent {
                    address: nowhere,
                    length,
                    checksum: 0,
                };
                own.insert(at, vec![extent]);
                nowhere += u64::from(length);
                at += u64::from(length);
            }
        }
        if !beside.is_empty() {
            found.push((inode.number, beside));
        }
        if own.is_empty() {
            *groups = None;
        }
    });
    for (number, groups) in found {
        // One group a file: groups that lie over each other again would be the same again.
        for (offset, extents) in groups {
            found_extents(contents, None, Groups::from([(offset, extents)]), number, told);
        }
    }
    // What was just made has its end to be told.
    contents.for_each_inode(|inode, groups| {
        let all = placed(inode, groups.as_ref());
        if let Some((at, extent)) = all.last() {
            inode.size = inode.size.max(at + u64::from(extent.length));
        }
    });
    let names = contents.names();
    for (number, from, to) in gone {
        let path = contents.path(number, &names);
        told.lost.push(format!(
            "{path}: where its bytes {from} to {to} lie stood in a damaged page"
        ));
    }
}

/// Whether a group of extents may have stood between these offsets: its key is one of them, or below.
fn group_may_be_lost(lost: &[LostKeys], inode: InodeNumber, from: u64, to: u64) -> bool {
    let first = Key::Extents(inode, from).encode();
    let behind = Key::Extents(inode, to).encode();
    lost.iter().any(|lost| {
        let begins = lost.low < behind;
        let ends = lost.high.as_ref().is_none_or(|high| *high > first);
        begins && ends
    })
}
