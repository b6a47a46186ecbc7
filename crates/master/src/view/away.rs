//! Masters that were there and are not.

use proto::v1;

use super::about;
use super::verdict::Verdict;

/// So long a master that ended in order is taken to be under maintenance: an upgrade, a restart of its machine.
const MAINTENANCE_SECONDS: u64 = 10 * 60;

/// A master that was there and is not.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MasterAwayRow {
    /// By which it was reached.
    pub address: String,
    /// Since it was last there, a minute too much at most; null where that is not known.
    pub silent_seconds: Option<u64>,
    /// It ended in order.
    pub ended: bool,
}

impl MasterAwayRow {
    /// One of those that an answer names.
    pub fn of(away: &v1::MasterAway) -> Self {
        let silent = super::unix_ms().saturating_sub(away.seen_unix_ms) / 1000;
        Self {
            address: away.address.clone(),
            silent_seconds: (away.seen_unix_ms > 0).then_some(silent),
            ended: away.ended,
        }
    }

    /// What it is doing, in a word or two.
    pub fn role(&self) -> &'static str {
        if self.ended { "stopped" } else { "GONE" }
    }

    /// It is expected back without anybody's help.
    fn is_maintained(&self) -> bool {
        self.ended
            && self
                .silent_seconds
                .is_some_and(|seconds| seconds < MAINTENANCE_SECONDS)
    }

    /// What is said of it, and how bad that is; `left` masters live.
    pub(super) fn judge(&self, left: usize) -> (Verdict, String) {
        let address = &self.address;
        let since = match self.silent_seconds {
            Some(seconds) => format!("for {}", about(seconds)),
            None => "for a time that is not known".to_owned(),
        };
        let what = match self.ended {
            true => format!("master {address} has been stopped {since}"),
            false => format!("master {address} has not been heard of {since}"),
        };
        if self.is_maintained() {
            return (Verdict::Healthy, what);
        }
        let outcome = match left {
            0 => "",
            1 => " (one is left: when that one ends, nothing that fails is mended any more)",
            _ => " (others live)",
        };
        let todo = format!("start it, or if it is gone for good, \"redhare master forget {address}\"");
        (Verdict::Degraded, format!("{what}{outcome}: {todo}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(silent_seconds: Option<u64>, ended: bool, left: usize) -> (Verdict, String) {
        let address = "192.0.2.2:7400".to_owned();
        let row = MasterAwayRow {
            address,
            silent_seconds,
            ended,
        };
        row.judge(left)
    }

    #[test]
    fn a_master_that_is_lost_is_trouble_at_once_and_one_that_was_stopped_when_it_stays_away() {
        let todo = ": start it, or if it is gone for good, \"redhare master forget 192.0.2.2:7400\"";
        let (verdict, what) = judged(Some(3), false, 2);
        assert_eq!(verdict, Verdict::Degraded);
        assert_eq!(
            what,
            format!("master 192.0.2.2:7400 has not been heard of for about 3 s (others live){todo}")
        );
        let (_, what) = judged(None, false, 1);
        let left = " (one is left: when that one ends, nothing that fails is mended any more)";
        assert_eq!(
            what,
            format!("master 192.0.2.2:7400 has not been heard of for a time that is not known{left}{todo}")
        );
        let stopped = "master 192.0.2.2:7400 has been stopped for about";
        assert_eq!(
            judged(Some(MAINTENANCE_SECONDS - 1), true, 2),
            (Verdict::Healthy, format!("{stopped} 10 min"))
        );
        assert_eq!(
            judged(Some(MAINTENANCE_SECONDS), true, 2),
            (Verdict::Degraded, format!("{stopped} 10 min (others live){todo}"))
        );
        assert_eq!(judged(None, true, 2).0, Verdict::Degraded);
    }
}
