//! The program itself: its version, its reactor, and its end.

use foundation::Instant;
use reactor::time;
use rpc::{Method, NoParameters, Registry, RpcError};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
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

pub(super) fn add(registry: &mut Registry) {
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
    let start = time::now();
    registry.add(Method::new(
        &["framework_get_reactors"],
        move |_: NoParameters| std::future::ready(Ok(reactors(start))),
    ));
    registry.add(Method::new(&["thread_get_stats"], move |_: NoParameters| {
        std::future::ready(Ok(threads(start)))
    }));
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

/// The processor time of the calling thread, which is the reactor's; it includes the brief polling before it sleeps.
fn busy_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * TICKS_PER_SECOND + used.tv_nsec as u64
}

/// Time since `start` that the reactor did not use, in nanoseconds.
fn idle_ns(start: Instant, busy_ns: u64) -> u64 {
    ((time::now() - start).as_nanos() as u64).saturating_sub(busy_ns)
}

fn cpumask() -> String {
    match rustix::thread::sched_getaffinity(None) {
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

fn reactors(start: Instant) -> Value {
    let busy_ns = busy_ns();
    let idle_ns = idle_ns(start, busy_ns);
    json!({
        "tick_rate": TICKS_PER_SECOND,
        "pid": std::process::id(),
        "reactors": [{
            // Where it runs now: it is bound to no processor.
            "lcore": rustix::thread::sched_getcpu(),
            "tid": rustix::thread::gettid().as_raw_nonzero().get(),
            "busy": busy_ns,
            "idle": idle_ns,
            "in_interrupt": true,
            "lw_threads": [{
                "name": THREAD_NAME,
                "id": 1,
                "cpumask": cpumask(),
                "elapsed": busy_ns + idle_ns,
            }],
        }],
    })
}

fn threads(start: Instant) -> Value {
    let busy_ns = busy_ns();
    json!({
        "tick_rate": TICKS_PER_SECOND,
        "threads": [{
            "name": THREAD_NAME,
            "id": 1,
            "cpumask": cpumask(),
            "busy": busy_ns,
            "idle": idle_ns(start, busy_ns),
            "in_interrupt": true,
        }],
    })
}
