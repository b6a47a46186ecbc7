//! `cargo xtask netns -- COMMAND`: run in a private network namespace, for measuring.
//!
//! Only a loopback is there, and TCP uses reno: the congestion control a machine is set to (BBR
//! paces, which stalls deep queues on loopback) and other programs' traffic stay out of the figures.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Outcome;

const CONGESTION_CONTROL: &str = "reno";

/// Sets the namespace up and becomes the command. The setting belongs to the namespace alone.
const SCRIPT: &str = r#"
control=$1
shift
setting=/proc/sys/net/ipv4/tcp_congestion_control
ip link set lo up || { echo "xtask netns: cannot bring lo up; run: apt-get install iproute2" >&2; exit 2; }
echo "$control" > "$setting" || { echo "xtask netns: cannot set $control; run: modprobe tcp_$control" >&2; exit 2; }
[ "$(cat "$setting")" = "$control" ] || { echo "xtask netns: $setting is not $control" >&2; exit 2; }
exec "$@"
"#;

/// Becomes the command, so returns only when it could not be started.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let Some((first, command)) = arguments
        .split_first()
        .filter(|(first, rest)| *first == "--" && !rest.is_empty())
    else {
        return Outcome::Unusable("usage: cargo xtask netns -- COMMAND [ARGUMENT...]".to_owned());
    };
    debug_assert_eq!(first, "--");
    let mut unshare = Command::new("unshare");
    unshare.arg("--net");
    if !is_root() {
        // A user gets a namespace of users in which the network may be set up.
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare
        .args(["--", "sh", "-c", SCRIPT, "netns", CONGESTION_CONTROL])
        .args(command);
    let error = unshare.exec();
    Outcome::Unusable(format!(
        "cannot start unshare: {error}; run: apt-get install util-linux"
    ))
}

fn is_root() -> bool {
    // /proc/self belongs to the effective user.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}
