//! `redhare doctor`: what this machine lacks, what that costs, how to mend it.

use std::fs;
use std::path::Path;

use crate::output::{Failure, Output, table};

#[derive(Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    Slow,
    Missing,
}

#[derive(serde::Serialize)]
struct Finding {
    part: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    cost: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: &'static str,
}

pub(crate) fn run(output: &Output) -> Result<(), Failure> {
    let findings = [
        io_uring(),
        direct_io(),
        locked_memory(),
        fuse(),
        hugepages(),
        open_files(),
        congestion_control(),
    ];
    let missing = findings
        .iter()
        .find(|finding| finding.verdict == Verdict::Missing && finding.part == "io_uring");
    let Some(finding) = missing else {
        output.print(&findings, || describe(&findings));
        return Ok(());
    };
    let failure = Failure::new(format!("this machine cannot run Redhare: {}", finding.remedy));
    Err(output.print_failed(&findings, failure, || describe(&findings)))
}

fn describe(findings: &[Finding]) -> String {
    let mut rows = vec![["PART", "VERDICT", "FOUND"].map(String::from).to_vec()];
    for finding in findings {
        let verdict = match finding.verdict {
            Verdict::Good => "good",
            Verdict::Slow => "slower",
            Verdict::Missing => "missing",
        };
        rows.push(vec![
            finding.part.to_owned(),
            verdict.to_owned(),
            finding.found.clone(),
        ]);
    }
    let mut text = table(&rows);
    for finding in findings.iter().filter(|finding| finding.verdict != Verdict::Good) {
        text.push_str(&format!(
            "\n{}: {}.\n  {}\n",
            finding.part, finding.cost, finding.remedy
        ));
    }
    text
}

fn good(part: &'static str, found: impl Into<String>) -> Finding {
    Finding {
        part,
        verdict: Verdict::Good,
        found: found.into(),
        cost: "",
        remedy: "",
    }
}

fn io_uring() -> Finding {
    match reactor::probe() {
        Ok(()) => good(
            "io_uring",
            "a ring with deferred task work and shared receive buffers",
        ),
        Err(error) => Finding {
            part: "io_uring",
            verdict: Verdict::Missing,
            found: error.source.to_string(),
            cost: "nothing of Redhare's data path runs without it",
            remedy: "use Linux 6.1 or newer, set \"sysctl kernel.io_uring_disabled=0\", and lift any seccomp filter against it",
        },
    }
}

fn direct_io() -> Finding {
    use std::os::unix::fs::OpenOptionsExt;
    let directory = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let path = directory.join(format!(".redhare-doctor-{}", std::process::id()));
    let opened = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .custom_flags(0o40000)
        .open(&path);
    // Best effort: the file is empty and ours.
    drop(fs::remove_file(&path));
    match opened {
        Ok(_) => good("O_DIRECT", format!("works in {}", directory.display())),
        Err(error) => Finding {
            part: "O_DIRECT",
            verdict: Verdict::Slow,
            found: format!("not in {}: {error}", directory.display()),
            cost: "disks on this file system go through the page cache: more copies, double caching",
            remedy: "keep disk files on ext4 or xfs, or name a block device",
        },
    }
}

fn limit(name: &str) -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with(name))?;
    let soft = line[name.len()..].split_whitespace().next()?;
    if soft == "unlimited" {
        Some(u64::MAX)
    } else {
        soft.parse().ok()
    }
}

fn locked_memory() -> Finding {
    match limit("Max locked memory").unwrap_or(0) {
        u64::MAX => good("locked memory", "unlimited"),
        bytes if bytes >= 64 << 20 => good("locked memory", format!("{} MiB", bytes >> 20)),
        bytes => Finding {
            part: "locked memory",
            verdict: Verdict::Slow,
            found: format!("{} MiB", bytes >> 20),
            cost: "buffers cannot be registered with the kernel or a network card; RDMA will refuse to start",
            remedy: "raise it: \"ulimit -l unlimited\", or LimitMEMLOCK=infinity in the systemd unit",
        },
    }
}

fn fuse() -> Finding {
    if Path::new("/dev/fuse").exists() {
        return good("FUSE", "/dev/fuse");
    }
    Finding {
        part: "FUSE",
        verdict: Verdict::Missing,
        found: "no /dev/fuse".to_owned(),
        cost: "\"redhare fs mount\" does not work; Python and the other commands do",
        remedy: "\"modprobe fuse\", or give the container the device /dev/fuse",
    }
}

fn hugepages() -> Finding {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = fs::read_to_string(path).unwrap_or_default();
    if text.contains("[always]") || text.contains("[madvise]") {
        return good("huge pages", text.trim().to_owned());
    }
    Finding {
        part: "huge pages",
        verdict: Verdict::Slow,
        found: "transparent huge pages are off".to_owned(),
        cost: "a little more CPU for large buffers; nothing needs huge pages",
        remedy: "\"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled\"",
    }
}

fn open_files() -> Finding {
    match limit("Max open files").unwrap_or(0) {
        files if files >= 16_384 => good("open files", format!("{files}")),
        files => Finding {
            part: "open files",
            verdict: Verdict::Slow,
            found: format!("{files}"),
            cost: "a target serves fewer connections than that",
            remedy: "raise it: \"ulimit -n 1048576\", or LimitNOFILE=1048576 in the systemd unit",
        },
    }
}

fn congestion_control() -> Finding {
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    match name.trim() {
        "bbr" => Finding {
            part: "TCP",
            verdict: Verdict::Slow,
            found: "congestion control bbr".to_owned(),
            cost: "on loopback it paces deep queues far below what the machine can do",
            remedy: "\"sysctl net.ipv4.tcp_congestion_control=cubic\" (or reno) on one-machine clusters",
        },
        name => good("TCP", format!("congestion control {name}")),
    }
}
