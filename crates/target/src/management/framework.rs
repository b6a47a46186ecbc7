//! The program itself: its version, its reactors, and its end.

use std::time::Duration;

use fabrics::target::Target;
use reactor::CoreHandle;
use rpc::{Method, NoParameters, Registry, RpcError};
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use serde_json::{Value, json};

/// Our ticks are nanoseconds.
const TICKS_PER_SECOND: u64 = 1_000_000_000;
/// SPDK's name for the thread that answers.
const THREAD_NAME: &str = "app_thread";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kill {
    sig_name: String,
}

pub(super) fn add(registry: &mut Registry, target: &Target) {
    registry.add(Method::new(&["spdk_get_version"], |_: NoParameters| {
        std::future::ready(Ok(version()))
    }));
    registry.add(Method::new(&["spdk_kill_instance"], |given: Kill| {
        std::future::ready(kill(&given.sig_name))
    }));
    // Requests are taken only once everything runs.
    registry.add(Method::new(&["framework_wait_init"], |_: NoParameters| {
        std::future::ready(Ok(true))
    }));
    let all = reactors_of(target);
    registry.add(Method::new(
        &["framework_get_reactors"],
        move |_: NoParameters| std::future::ready(Ok(reactors(&all))),
    ));
    let all = reactors_of(target);
    registry.add(Method::new(&["thread_get_stats"], move |_: NoParameters| {
        std::future::ready(Ok(threads(&all)))
    }));
}

/// Those that serve the target's connections; the calling one if no others were named.
fn reactors_of(target: &Target) -> Vec<CoreHandle> {
    let mut all = target.reactors();
    if all.is_empty() {
        all.push(CoreHandle::current());
    }
    all
}

fn version() -> Value {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    json!({
        "version": concat!("Redhare ", env!("CARGO_PKG_VERSION")),
        "fields": {
            "major": number(env!("CARGO_PKG_VERSION_MAJOR")),
            "minor": number(env!("CARGO_PKG_VERSION_MINOR")),
            "patch": number(env!("CARGO_PKG_VERSION_PATCH")),
            "suffix": env!("CARGO_PKG_VERSION_PRE"),
        },
    })
}

fn kill(name: &str) -> Result<bool, RpcError> {
    let signal = match name.strip_prefix("SIG").unwrap_or(name) {
        "INT" => Signal::INT,
        "TERM" => Signal::TERM,
        "KILL" => Signal::KILL,
        _ => {
            let remedy = format!("{name} has no meaning here; use SIGINT, SIGTERM or SIGKILL");
            return Err(RpcError::unsupported("spdk_kill_instance", "sig_name", &remedy));
        }
    };
    let sent = rustix::process::kill_process(rustix::process::getpid(), signal);
    sent.map(|()| true).map_err(|error| {
        RpcError::errno(
            error.raw_os_error(),
            format!("{name} could not be sent to this process: {error}"),
        )
    })
}

/// The processors that a thread may use, in hexadecimal.
fn cpumask(thread: Option<Pid>) -> String {
    match rustix::thread::sched_getaffinity(thread) {
        Ok(set) => {
            let mut digits = Vec::new();
            for group in (0..rustix::thread::CpuSet::MAX_CPU / 4).rev() {
                let bits = (0..4).filter(|bit| set.is_set(group * 4 + bit));
                let digit = bits.fold(0_u32, |digit, bit| digit | 1 << bit);
                if digit > 0 || !digits.is_empty() {
                    digits.push(char::from_digit(digit, 16).unwrap_or('0'));
                }
            }
            digits.into_iter().collect()
        }
        Err(_) => String::new(),
    }
}

/// Where a thread of ours ran last (proc_pid_stat(5), field 39), if the system says so.
fn processor(thread: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The second field is a name in parentheses, which may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// SPDK's name for a reactor's thread: the first one answers.
fn thread_name(reactor: &CoreHandle) -> String {
    match reactor.index() {
        0 => THREAD_NAME.to_owned(),
        index => format!("reactor_{index}"),
    }
}

fn reactors(all: &[CoreHandle]) -> Value {
    let describe = |reactor: &CoreHandle| {
        let usage = reactor.usage();
        let (busy_ns, idle_ns) = (ns(usage.busy), ns(usage.polling + usage.sleeping));
        let thread = reactor.thread_id();
        json!({
            "lcore": processor(thread),
            "tid": thread,
            "busy": busy_ns,
            "idle": idle_ns,
            "in_interrupt": true,
            "lw_threads": [{
                "name": thread_name(reactor),
                "id": reactor.index() + 1,
                "cpumask": cpumask(Pid::from_raw(thread.cast_signed())),
                "elapsed": busy_ns + idle_ns,
            }],
        })
    };
    json!({
        "tick_rate": TICKS_PER_SECOND,
        "pid": std::process::id(),
        "reactors": all.iter().map(describe).collect::<Vec<_>>(),
    })
}

fn threads(all: &[CoreHandle]) -> Value {
    let describe = |reactor: &CoreHandle| {
        let usage = reactor.usage();
        json!({
            "name": thread_name(reactor),
            "id": reactor.index() + 1,
            "cpumask": cpumask(Pid::from_raw(reactor.thread_id().cast_signed())),
            "busy": ns(usage.busy),
            "idle": ns(usage.polling + usage.sleeping),
            "in_interrupt": true,
        })
    };
    json!({
        "tick_rate": TICKS_PER_SECOND,
        "threads": all.iter().map(describe).collect::<Vec<_>>(),
    })
}
