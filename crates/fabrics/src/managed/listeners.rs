//! Where subsystems and discovery are reached, and the other discovery services that hosts are told of.

use std::net::SocketAddr;

use protocols::nvme::Nqn;
use protocols::nvme::nqn::DISCOVERY_NQN;
use rpc::{Method, Registry, RpcError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::address::{Address, shown};
use super::subsystems::parse_nqn;
use super::{Management, check_target};
use crate::target::{Portal, Referral};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listener {
    nqn: String,
    listen_address: Address,
    tgt_name: Option<String>,
    secure_channel: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refer {
    address: Address,
    subnqn: Option<String>,
    tgt_name: Option<String>,
    secure_channel: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetReferrals {
    tgt_name: Option<String>,
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(
        &["nvmf_subsystem_add_listener"],
        move |given: Listener| std::future::ready(add_listener(&own, &given)),
    ));
    let own = management.clone();
    registry.add(Method::new(
        &["nvmf_subsystem_remove_listener"],
        move |given: Listener| std::future::ready(remove_listener(&own, &given)),
    ));
    let own = management.clone();
    registry.add(Method::new(
        &["nvmf_discovery_add_referral"],
        move |given: Refer| std::future::ready(add_referral(&own, &given)),
    ));
    let own = management.clone();
    registry.add(Method::new(
        &["nvmf_discovery_remove_referral"],
        move |given: Refer| std::future::ready(remove_referral(&own, &given)),
    ));
    let own = management.clone();
    registry.add(Method::new(
        &["nvmf_discovery_get_referrals"],
        move |given: GetReferrals| std::future::ready(get_referrals(&own, &given)),
    ));
}

fn add_listener(management: &Management, given: &Listener) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let address = given.listen_address.parse()?;
    let is_secure = given.secure_channel.unwrap_or(false);
    if given.nqn != DISCOVERY_NQN {
        let subsystem = management.subsystem(&given.nqn)?;
        management.add_listener(&subsystem, address, is_secure)?;
        return Ok(true);
    }
    management.add_discovery_listener(address, is_secure)?;
    Ok(true)
}

impl Management {
    /// Keeps a listener open for discovery, whether or not a subsystem is reached there. A secure one takes TLS alone.
    ///
    /// # Errors
    /// If it is kept, if there is no transport, if it is there and differs, or if the system does not let us listen.
    pub fn add_discovery_listener(&self, address: SocketAddr, is_secure: bool) -> Result<Portal, RpcError> {
        let portal = self.listen(address, is_secure)?;
        if !self.0.discovery.borrow_mut().insert(portal) {
            return Err(RpcError::errno(
                libc::EEXIST,
                format!("discovery listens on {address} already"),
            ));
        }
        Ok(portal)
    }
}

fn remove_listener(management: &Management, given: &Listener) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let address = given.listen_address.parse()?;
    let portal = Portal { address };
    let removed = if given.nqn == DISCOVERY_NQN {
        management.0.discovery.borrow_mut().remove(&portal)
    } else {
        management.subsystem(&given.nqn)?.remove_portal(portal)
    };
    if !removed {
        return Err(RpcError::errno(
            libc::ENOENT,
            format!(
                "{} does not listen on {address}; nvmf_get_subsystems says where it does",
                given.nqn
            ),
        ));
    }
    management.close_idle_listeners();
    Ok(true)
}

fn referral(given: &Refer) -> Result<Referral, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    RpcError::unless_usual(
        "nvmf_discovery_add_referral",
        "secure_channel",
        given.secure_channel,
        false,
    )?;
    let subsystem = match &given.subnqn {
        None => Nqn::discovery(),
        Some(text) => parse_nqn(text)?,
    };
    Ok(Referral {
        address: given.address.parse()?,
        subsystem,
    })
}

fn add_referral(management: &Management, given: &Refer) -> Result<bool, RpcError> {
    let referral = referral(given)?;
    let address = referral.address;
    if management.0.target.add_referral(referral) {
        return Ok(true);
    }
    Err(RpcError::errno(
        libc::EEXIST,
        format!("hosts are told of the discovery service on {address} already"),
    ))
}

fn remove_referral(management: &Management, given: &Refer) -> Result<bool, RpcError> {
    let referral = referral(given)?;
    if management.0.target.remove_referral(&referral) {
        return Ok(true);
    }
    Err(RpcError::errno(
        libc::ENOENT,
        format!(
            "hosts are not told of {} on {}; nvmf_discovery_get_referrals lists what they are told",
            referral.subsystem, referral.address
        ),
    ))
}

fn get_referrals(management: &Management, given: &GetReferrals) -> Result<Vec<Value>, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let referrals = management.0.target.referrals();
    Ok(referrals
        .iter()
        .map(|referral| {
            json!({
                "address": shown(referral.address),
                "subnqn": referral.subsystem.as_str(),
                "secure_channel": false,
            })
        })
        .collect())
}
