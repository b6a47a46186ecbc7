//! Clients' reads of the map. Any master answers them, over ways that delay and lose; some answers are of a moment long past, as those
//! of a master or an etcd that is behind, or come after newer ones.

use super::{By, MASTERS, VOLUME, WholeEvent, config_of};
use crate::configuration::ChunkConfig;
use crate::simulation::events::Event;
use crate::simulation::world::{MS, SECOND, US, World};

/// How many earlier maps there are to answer with.
const PAST: usize = 24;

impl World {
    /// A client asks for the map; it may never hear of it.
    pub(in crate::simulation) fn ask_for_map(&mut self, client: usize) {
        let healing = self.healing;
        let whole = self.of_whole();
        let master = whole.random.below(MASTERS as u64) as usize;
        if let Some(delay) = whole.delay_to_client(healing) {
            self.at(delay, Event::Whole(WholeEvent::MapAsked { client, master }));
        }
    }

    pub(super) fn map_is_asked(&mut self, client: usize, master: usize) {
        let (now, healing) = (self.now, self.healing);
        let whole = self.of_whole();
        let own = &mut whole.masters[master];
        if !own.lives {
            return;
        }
        let clock = own.clock(now);
        let read = own
            .member
            .read(clock)
            .and_then(|control| control.map(VOLUME, 0, 64));
        let Ok((volume, chunks)) = read else {
            return;
        };
        let in_use = volume.geometry.chunk_count();
        let chunks = chunks.iter().filter(|(id, _)| id.index < in_use);
        let mut map: Vec<ChunkConfig> = chunks.map(|(_, chunk)| config_of(chunk)).collect();
        if !healing && !whole.past.is_empty() && whole.random.chance(1, 8) {
            let at = whole.random.below(whole.past.len() as u64) as usize;
            map.clone_from(&whole.past[at]);
            whole.old_maps += 1;
        }
        match whole.delay_to_client(healing) {
            Some(delay) => self.at(delay, Event::Whole(WholeEvent::Map { client, map })),
            None => whole.lost_maps += 1,
        }
        self.note_committed(By::Other);
    }

    /// As `ChunkMap::adopt` does it: of each chunk the newer configuration stays.
    pub(super) fn map_has_come(&mut self, client: usize, map: Vec<ChunkConfig>) {
        let known = &mut self.clients[client].map;
        for (index, config) in map.into_iter().enumerate() {
            match known.get_mut(index) {
                Some(known) if known.epoch < config.epoch => *known = config,
                Some(_) => {}
                None => known.push(config),
            }
        }
    }

    /// Keeps the map as it is in use now, to answer with later.
    pub(super) fn keep_map(&mut self) {
        let in_use = self.of_whole().in_use;
        let map = self.store[..in_use].to_vec();
        let past = &mut self.of_whole().past;
        if past.back() != Some(&map) {
            past.push_back(map);
        }
        if past.len() > PAST {
            past.pop_front();
        }
    }
}

impl super::Whole {
    /// How long something between a client and a master takes; none if it is lost.
    fn delay_to_client(&mut self, healing: bool) -> Option<u64> {
        let usual = self.random.between(50 * US, 2 * MS);
        match self.random.below(40) {
            _ if healing => Some(usual),
            0..=2 => None,
            3..=5 => Some(usual + self.random.below(3 * SECOND)),
            _ => Some(usual),
        }
    }
}
