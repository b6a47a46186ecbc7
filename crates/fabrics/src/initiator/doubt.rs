//! What a lost association may still do at its target, and how a host makes sure that it does nothing any more.
//!
//! A host that gives an association up does not know whether the target has noticed: what it has sent may lie in a
//! buffer there, and a write that is begun late would land on top of a newer one. So no command leaves on a new
//! association before the old one is known to have ended and drained: the target is told to end it (Cross-Controller
//! Reset, NVM Express Base Specification 2.3, section 5.4.3), or, if it does not have that command and writes were in
//! flight, the time is waited in which it must have noticed by itself.

use std::time::Duration;

use bdev::Data;
use foundation::Instant;
use protocols::nvme::admin::CrossControllerReset;
use protocols::nvme::identify::controller_bits::CTRATT_TRAFFIC_BASED_KEEP_ALIVE;
use reactor::time;

use super::controller::{ConnectError, Controller};

/// Between questions whether an association has ended.
const PAUSE: Duration = Duration::from_millis(20);
/// Beyond the keep-alive time: targets look at it now and then.
const GRACE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    reset: CrossControllerReset,
    /// We have sent nothing there since.
    since: Instant,
    /// How long after that it has ended for certain; `None` if it has promised nothing.
    quiet: Option<Duration>,
}

impl Doubt {
    /// Of an association on which nothing is sent from `since` on.
    pub(super) fn of(controller: &Controller, since: Instant) -> Self {
        let identity = controller.identity();
        let reset = CrossControllerReset {
            cntlid: controller.cntlid(),
            ciu: identity.ciu,
            cirn: if identity.ccrl == 0 { 0 } else { identity.cirn },
        };
        Self {
            reset,
            since,
            quiet: quiet_time(
                controller.keep_alive(),
                identity.ctratt & CTRATT_TRAFFIC_BASED_KEEP_ALIVE != 0,
                identity.cqt,
            ),
        }
    }

    /// Whether there is a way to be sure. Without one, writes of unknown outcome must not be repeated.
    pub(super) fn can_be_settled(&self) -> bool {
        self.reset.cirn != 0 || self.quiet.is_some()
    }

    /// Waits until the old association can do nothing any more. `writes`: some were in flight when it was lost. False if
    /// nothing proves that it has ended: neither can this controller end it (it has no Cross-Controller Reset, as the one
    /// before it had), nor does any time bound it (there was no keep-alive time). Then the writes stay in doubt.
    pub(super) async fn settle(&self, controller: &Controller, writes: bool) -> Result<bool, ConnectError> {
        if self.reset.cirn != 0 && controller.identity().ccrl != 0 {
            loop {
                let command = self.reset.to_command();
                let (completion, _) = controller
                    .admin("Cross-Controller Reset", command, Data::None)
                    .await?;
                if completion.result() & CrossControllerReset::IMMEDIATE != 0 {
                    return Ok(true);
                }
                time::sleep(PAUSE).await;
            }
        }
        Ok(!writes || self.outlast().await)
    }

    /// Waits until the association has ended by itself; false if nothing bounds it.
    async fn outlast(&self) -> bool {
        let Some(end) = self.quiet_end() else { return false };
        time::sleep(end.since(time::now())).await;
        true
    }

    /// As [`Doubt::settle`], through a controller at an address that the association was not at.
    pub(super) async fn settle_away(
        &self,
        controller: &Controller,
        writes: bool,
    ) -> Result<bool, ConnectError> {
        Ok(self.settle_elsewhere(controller, false).await? || !writes || self.outlast().await)
    }

    /// Has the association ended by a controller at another address, at once or not at all. It may be of another target under the same name,
    /// which knows nothing of the association and would call it ended: `same_target` says that it is known not to be. True
    /// if it is settled; otherwise only the time does it, or a controller of the same target.
    pub(super) async fn settle_elsewhere(
        &self,
        controller: &Controller,
        same_target: bool,
    ) -> Result<bool, ConnectError> {
        if self.reset.cirn == 0 || controller.identity().ccrl == 0 {
            return Ok(false);
        }
        if !same_target && !controller.lists(self.reset.cntlid).await? {
            return Ok(false);
        }
        self.settle(controller, false).await
    }

    /// The controller's number.
    pub(super) fn cntlid(&self) -> u16 {
        self.reset.cntlid
    }

    /// When the old association has ended by itself; `None` if nothing bounds it.
    pub(super) fn quiet_end(&self) -> Option<Instant> {
        Some(self.since + self.quiet?)
    }
}

/// A target ends an association after one keep-alive time without a command, or at the end of the second if it only
/// looks whether there was any in each (traffic based, NVM Express Base Specification 2.0c, section 3.9); its commands
/// may go on for the Command Quiesce Time, in milliseconds, after that.
fn quiet_time(keep_alive: Duration, traffic_based: bool, quiesce_ms: u16) -> Option<Duration> {
    let periods = if traffic_based { 2 } else { 1 };
    (!keep_alive.is_zero()).then(|| keep_alive * periods + Duration::from_millis(quiesce_ms.into()) + GRACE)
}

#[cfg(test)]
mod tests {
    use super::super::controller::ConnectOptions;
    use super::super::device::RemoteOptions;
    use super::*;

    #[test]
    fn silence_lasts_as_long_as_the_target_may_be_unaware() {
        let kato = Duration::from_secs(10);
        assert_eq!(quiet_time(kato, false, 0), Some(Duration::from_secs(11)));
        assert_eq!(quiet_time(kato, true, 500), Some(Duration::from_millis(21_500)));
        assert_eq!(quiet_time(Duration::ZERO, true, 500), None);
    }

    /// Otherwise a write that was in flight to a process that is killed for good would fail, though other paths are there.
    #[test]
    fn requests_wait_longer_by_default_than_a_doubt_lasts() {
        let nqn: protocols::nvme::Nqn = "nqn.2026-11.io.redhare:any".parse().unwrap();
        let address = "127.0.0.1:4420".parse().unwrap();
        let options = RemoteOptions::new(ConnectOptions::new(address, nqn.clone(), nqn, [1; 16]), 1);
        let lasts = quiet_time(options.connect.keep_alive, true, 0).unwrap();
        assert!(options.wait_limit > lasts + Duration::from_secs(5), "{lasts:?}");
    }
}
