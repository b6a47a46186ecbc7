//! `nvmf_create_transport` and `nvmf_get_transports`.

use rpc::{Method, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::address::check_trtype;
use super::{Management, check_target};
use crate::target::{IN_CAPSULE_BYTES, Options, QueueLimits, TRANSFER_LIMIT_BYTES};

const METHOD: &str = "nvmf_create_transport";

/// SPDK's parameters; those of other transports are taken when they ask for nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    trtype: String,
    tgt_name: Option<String>,
    max_queue_depth: Option<u16>,
    max_io_qpairs_per_ctrlr: Option<u16>,
    in_capsule_data_size: Option<u32>,
    max_io_size: Option<usize>,
    max_aq_depth: Option<u16>,
    c2h_success: Option<bool>,
    zcopy: Option<bool>,
    dif_insert_or_strip: Option<bool>,
    no_srq: Option<bool>,
    no_wr_batching: Option<bool>,
    disable_mappable_bar0: Option<bool>,
    disable_adaptive_irq: Option<bool>,
    disable_shadow_doorbells: Option<bool>,
    /// We never forward what we do not know, so asking for it changes nothing.
    #[serde(rename = "disable_command_passthru")]
    _disable_command_passthru: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    trtype: Option<String>,
    tgt_name: Option<String>,
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&[METHOD], move |given: Create| {
        std::future::ready(create(&own, &given))
    }));
    let own = management.clone();
    registry.add(Method::new(&["nvmf_get_transports"], move |given: Get| {
        std::future::ready(get(&own, &given))
    }));
}

fn create(management: &Management, given: &Create) -> Result<bool, RpcError> {
    check_trtype(&given.trtype)?;
    check_target(given.tgt_name.as_deref())?;
    for (parameter, value) in [
        ("zcopy", given.zcopy),
        ("dif_insert_or_strip", given.dif_insert_or_strip),
        ("no_srq", given.no_srq),
        ("no_wr_batching", given.no_wr_batching),
        ("disable_mappable_bar0", given.disable_mappable_bar0),
        ("disable_adaptive_irq", given.disable_adaptive_irq),
        ("disable_shadow_doorbells", given.disable_shadow_doorbells),
    ] {
        RpcError::unless_usual(METHOD, parameter, value, false)?;
    }
    let usual = QueueLimits::default();
    fixed(
        "in_capsule_data_size",
        given.in_capsule_data_size,
        IN_CAPSULE_BYTES,
    )?;
    fixed("max_io_size", given.max_io_size, TRANSFER_LIMIT_BYTES)?;
    fixed("max_aq_depth", given.max_aq_depth, usual.entries)?;
    let queues = QueueLimits {
        io_queues: within(
            "max_io_qpairs_per_ctrlr",
            given.max_io_qpairs_per_ctrlr,
            1,
            usual.io_queues,
        )?,
        entries: within("max_queue_depth", given.max_queue_depth, 2, usual.entries)?,
    };
    management.create_transport(Options {
        success_flag: given.c2h_success.unwrap_or(true),
        queues,
        ..Options::default()
    })?;
    Ok(true)
}

/// A size that is built in.
fn fixed<T: PartialEq + std::fmt::Display>(
    parameter: &str,
    given: Option<T>,
    ours: T,
) -> Result<(), RpcError> {
    match given {
        Some(value) if value != ours => {
            let remedy = format!("{value} was asked for; leave it out, or write {ours}");
            Err(RpcError::unsupported(METHOD, parameter, &remedy))
        }
        _ => Ok(()),
    }
}

/// A number that has bounds, the upper of which is what is offered by itself.
fn within(parameter: &str, given: Option<u16>, least: u16, most: u16) -> Result<u16, RpcError> {
    match given {
        None => Ok(most),
        Some(value) if (least..=most).contains(&value) => Ok(value),
        Some(value) => Err(RpcError::errno(
            libc::EINVAL,
            format!("{METHOD}: {parameter} is {value}; use {least} to {most}"),
        )),
    }
}

fn get(management: &Management, given: &Get) -> Result<Vec<Value>, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    if let Some(trtype) = &given.trtype {
        check_trtype(trtype)?;
        if management.0.transport.borrow().is_none() {
            return Err(RpcError::errno(
                libc::ENODEV,
                "there is no TCP transport yet; nvmf_create_transport makes it",
            ));
        }
    }
    Ok(management.0.transport.borrow().iter().map(shown).collect())
}

fn shown(options: &Options) -> Value {
    json!({
        "trtype": "TCP",
        "max_queue_depth": options.queues.entries,
        "max_io_qpairs_per_ctrlr": options.queues.io_queues,
        "in_capsule_data_size": IN_CAPSULE_BYTES,
        "max_io_size": TRANSFER_LIMIT_BYTES,
        "max_aq_depth": QueueLimits::default().entries,
        "c2h_success": options.success_flag,
        "zcopy": false,
        "dif_insert_or_strip": false,
    })
}

/// The call that makes the transport again.
pub(super) fn saved(options: &Options) -> SavedCall {
    SavedCall {
        method: METHOD,
        params: json!({
            "trtype": "TCP",
            "max_queue_depth": options.queues.entries,
            "max_io_qpairs_per_ctrlr": options.queues.io_queues,
            "c2h_success": options.success_flag,
        }),
    }
}
