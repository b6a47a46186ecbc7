//! A copy whose disk had no room takes part again once there is some (`docs/decisions/0084`).
//!
//! Nothing of what such a copy has answered is lost: a write for which there was no room is not answered. So where the
//! others have left it out it returns as any copy; where they could not, it is still one of those without which nothing was
//! acknowledged, and seals the next epoch. It takes no part in the epoch in which it failed, since its window holds
//! writes that it does not have.

use foundation::Instant;

use super::{Member, Resignation};
use crate::grants::Grants;
use crate::identity::NodeId;
use crate::output::Reason;
use crate::planted::Bug;

impl Member {
    /// Whether this copy takes no part because its disk had no room.
    pub fn lacks_room(&self) -> bool {
        self.failed && self.lacks_room
    }

    /// The disk has no room for something that it was asked.
    pub(crate) fn handle_full(&mut self, now: Instant) {
        self.lacks_room |= !self.failed;
        self.fail(now);
    }

    /// The disk may have room again.
    pub(crate) fn handle_room(&mut self, now: Instant, grants: &mut Grants) {
        if !self.lacks_room() {
            return;
        }
        (self.failed, self.lacks_room) = (false, false);
        self.resignation = None;
        if self.planted.is(Bug::RoomWithoutNewEpoch) {
            return self.pump(now, grants);
        }
        self.leave(now, grants);
        let (me, incarnation) = self.life();
        if let Some(config) = self.committed.clone() {
            let is_member = config.has(me, incarnation);
            let leads = is_member && config.write_node == me;
            match is_member && self.record.sealed < config.epoch {
                true if leads => self.take_lead(now, &config),
                // Its write node asks for the seal until it is given.
                true => {}
                false if leads => {
                    let expected = config.epoch;
                    let mut config = config;
                    config.epoch = expected.next();
                    self.resignation = Some(Resignation {
                        expected,
                        config,
                        reason: Reason::RoomAgain(me),
                        again_at: now,
                    });
                    self.resign(now);
                }
                false => self.begin_return(now, &config),
            }
        }
        self.pump(now, grants);
    }

    /// As write node: a member that had no room is to take part again, in a new epoch of the same members.
    pub(super) fn take_back(&mut self, now: Instant, node: NodeId) {
        let limit = self.settings.suspect_after;
        let Some(lead) = &self.lead else { return };
        let asked = lead.proposed_at.is_some_and(|at| now.since(at) < limit);
        // A join that binds brings a new epoch by itself.
        if !asked && !lead.join_binds() {
            self.propose_same_members(now, Reason::RoomAgain(node));
        }
    }
}
