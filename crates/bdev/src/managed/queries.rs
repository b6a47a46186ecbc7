//! What devices there are, what went through them, and how much may.

use std::time::Duration;

use foundation::uuid::format_uuid;
use reactor::time;
use rpc::{Method, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Devices, Managed};
use crate::BlockDevice;
use crate::counted::{Statistics, Tally};
use crate::throttle::Rates;

/// Our ticks are nanoseconds.
const TICKS_PER_SECOND: u64 = 1_000_000_000;
/// Unit of the byte limits.
const MEBIBYTE: u64 = 1 << 20;
/// The least that SPDK takes, and so do we.
const OPERATIONS_LIMIT_MIN: u64 = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetBdevs {
    name: Option<String>,
    /// How long to wait for it, in milliseconds.
    #[serde(default)]
    timeout: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetIostat {
    names: Option<Vec<String>>,
    /// The one name that older clients send.
    name: Option<String>,
    #[serde(default)]
    per_channel: bool,
    /// Nothing is ever reset, so the only mode there is needs no doing.
    #[serde(rename = "reset_mode")]
    _reset_mode: Option<ResetMode>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum ResetMode {
    None,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetLimits {
    name: String,
    rw_ios_per_sec: Option<u64>,
    rw_mbytes_per_sec: Option<u64>,
    r_mbytes_per_sec: Option<u64>,
    w_mbytes_per_sec: Option<u64>,
}

pub(super) fn add(registry: &mut Registry, devices: &Devices) {
    let own = devices.clone();
    registry.add(Method::new(&["bdev_get_bdevs"], move |given: GetBdevs| {
        get_bdevs(own.clone(), given)
    }));
    let own = devices.clone();
    registry.add(Method::new(&["bdev_get_iostat"], move |given: GetIostat| {
        std::future::ready(get_iostat(&own, given))
    }));
    let own = devices.clone();
    registry.add(Method::new(&["bdev_set_qos_limit"], move |given: SetLimits| {
        std::future::ready(set_limits(&own, &given))
    }));
}

async fn get_bdevs(devices: Devices, given: GetBdevs) -> Result<Vec<Value>, RpcError> {
    let Some(name) = given.name else {
        return Ok(devices.all().iter().map(|managed| describe(managed)).collect());
    };
    if given.timeout > 0 {
        let there = devices.0.changed.until(|| devices.find(&name).is_some());
        // Whether it came is seen below.
        let _ = time::timeout(Duration::from_millis(given.timeout), there).await;
    }
    Ok(vec![describe(&*devices.get(&name)?)])
}

fn describe(managed: &Managed) -> Value {
    let geometry = managed.device.geometry();
    let uuid = format_uuid(&managed.uuid);
    let mut shown = json!({
        "name": managed.name,
        "aliases": [uuid],
        "product_name": managed.product,
        "block_size": geometry.block_bytes,
        "num_blocks": geometry.blocks.0,
        "uuid": uuid,
        "assigned_rate_limits": limits(managed.limits.rates()),
        "claimed": managed.claimed_by().is_some(),
        "zoned": false,
        "supported_io_types": {
            "read": true,
            "write": true,
            "unmap": true,
            "flush": true,
            "reset": false,
            "nvme_admin": false,
            "nvme_io": false,
            "nvme_io_md": false,
            "write_zeroes": true,
            "zcopy": false,
            "get_zone_info": false,
            "zone_management": false,
            "zone_append": false,
            "compare": true,
            "compare_and_write": false,
            "abort": false,
            "seek_hole": false,
            "seek_data": false,
            "copy": false,
            "nvme_iov_md": false,
        },
        "driver_specific": (managed.details)(),
    });
    if managed.claimed_by().is_some() {
        shown["claim_type"] = json!("exclusive_write");
    }
    if geometry.boundary_blocks > 0 {
        shown["optimal_io_boundary"] = json!(geometry.boundary_blocks);
    }
    shown
}

fn get_iostat(devices: &Devices, given: GetIostat) -> Result<Value, RpcError> {
    let names = given.names.or(given.name.map(|name| vec![name]));
    let chosen = match names {
        None => devices.all(),
        Some(names) => names
            .iter()
            .map(|name| devices.get(name))
            .collect::<Result<_, _>>()?,
    };
    let bdevs: Vec<Value> = chosen
        .iter()
        .map(|managed| {
            if given.per_channel {
                let channels: Vec<Value> = managed.device.by_channel().into_iter().map(statistics).collect();
                return json!({ "name": managed.name, "channels": channels });
            }
            let mut shown = statistics(managed.device.statistics());
            shown["name"] = json!(managed.name);
            shown
        })
        .collect();
    Ok(json!({
        "tick_rate": TICKS_PER_SECOND,
        "ticks": time::now().as_nanos(),
        "bdevs": bdevs,
    }))
}

fn statistics(of: Statistics) -> Value {
    let mut shown = json!({});
    let kinds: [(&str, &str, Tally); 3] = [
        ("read", "bytes_read", of.reads),
        ("write", "bytes_written", of.writes),
        ("unmap", "bytes_unmapped", of.deallocations),
    ];
    for (kind, bytes, tally) in kinds {
        shown[bytes] = json!(tally.bytes);
        shown[format!("num_{kind}_ops")] = json!(tally.operations);
        shown[format!("{kind}_latency_ticks")] = json!(tally.time_ns);
        shown[format!("max_{kind}_latency_ticks")] = json!(tally.longest_ns);
        shown[format!("min_{kind}_latency_ticks")] = json!(tally.shortest_ns);
    }
    shown["io_error"] = if of.failures > 0 {
        json!({ "failed": of.failures })
    } else {
        json!({})
    };
    shown
}

fn limits(rates: Rates) -> Value {
    json!({
        "rw_ios_per_sec": rates.operations,
        "rw_mbytes_per_sec": rates.bytes / MEBIBYTE,
        "r_mbytes_per_sec": rates.read_bytes / MEBIBYTE,
        "w_mbytes_per_sec": rates.write_bytes / MEBIBYTE,
    })
}

pub(super) fn saved_limits(name: &str, rates: Rates) -> SavedCall {
    let mut params = limits(rates);
    params["name"] = json!(name);
    SavedCall {
        method: "bdev_set_qos_limit",
        params,
    }
}

fn set_limits(devices: &Devices, given: &SetLimits) -> Result<bool, RpcError> {
    let managed = devices.get(&given.name)?;
    let before = managed.limits.rates();
    let bytes = |parameter: &str, given: Option<u64>, before: u64| match given {
        None => Ok(before),
        Some(mebibytes) => mebibytes.checked_mul(MEBIBYTE).ok_or_else(|| {
            let why = format!(
                "bdev_set_qos_limit: {parameter} is {mebibytes}; use at most {}",
                u64::MAX / MEBIBYTE
            );
            RpcError::errno(libc::EINVAL, why)
        }),
    };
    let rates = Rates {
        operations: match given.rw_ios_per_sec {
            None => before.operations,
            Some(limit @ 1..OPERATIONS_LIMIT_MIN) => {
                let why = format!(
                    "bdev_set_qos_limit: rw_ios_per_sec is {limit}; use at least {OPERATIONS_LIMIT_MIN}, or 0 for no limit"
                );
                return Err(RpcError::errno(libc::EINVAL, why));
            }
            Some(limit) => limit,
        },
        bytes: bytes("rw_mbytes_per_sec", given.rw_mbytes_per_sec, before.bytes)?,
        read_bytes: bytes("r_mbytes_per_sec", given.r_mbytes_per_sec, before.read_bytes)?,
        write_bytes: bytes("w_mbytes_per_sec", given.w_mbytes_per_sec, before.write_bytes)?,
    };
    let asked = [
        given.rw_ios_per_sec,
        given.rw_mbytes_per_sec,
        given.r_mbytes_per_sec,
        given.w_mbytes_per_sec,
    ];
    if asked.iter().all(Option::is_none) {
        let why = "bdev_set_qos_limit: no limit was given; give at least one, 0 for none";
        return Err(RpcError::errno(libc::EINVAL, why));
    }
    managed.limits.set(rates);
    Ok(true)
}
