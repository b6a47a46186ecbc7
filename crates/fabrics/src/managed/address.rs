//! Transport addresses as SPDK writes them.

use std::net::{IpAddr, SocketAddr};

use rpc::RpcError;
use serde::Deserialize;
use serde_json::{Value, json};

/// A transport address as callers give it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Address {
    pub(super) trtype: String,
    pub(super) traddr: String,
    pub(super) trsvcid: Option<String>,
    pub(super) adrfam: Option<String>,
}

pub(super) fn check_trtype(trtype: &str) -> Result<(), RpcError> {
    if trtype.eq_ignore_ascii_case("tcp") {
        return Ok(());
    }
    Err(RpcError::invalid_params(format!(
        "trtype {trtype} is not there; the only transport is TCP"
    )))
}

impl Address {
    pub(super) fn parse(&self) -> Result<SocketAddr, RpcError> {
        check_trtype(&self.trtype)?;
        let ip: IpAddr = self.traddr.parse().map_err(|_| {
            RpcError::invalid_params(format!(
                "traddr \"{}\" is no IP address; write one such as 192.0.2.1 or 2001:db8::1",
                self.traddr
            ))
        })?;
        let family = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
        if let Some(adrfam) = &self.adrfam
            && !adrfam.eq_ignore_ascii_case(family)
        {
            return Err(RpcError::invalid_params(format!(
                "adrfam is {adrfam}, but {ip} is of {family}; leave adrfam out, or write {family}"
            )));
        }
        let port = self.trsvcid.as_deref().and_then(|text| text.parse::<u16>().ok());
        match port {
            Some(port) if port > 0 => Ok(SocketAddr::new(ip, port)),
            _ => Err(RpcError::invalid_params(format!(
                "trsvcid is {}; write a port of 1 to 65535, as text: \"4420\"",
                self.trsvcid.as_deref().unwrap_or("missing")
            ))),
        }
    }
}

pub(super) fn shown(address: SocketAddr) -> Value {
    json!({
        "trtype": "TCP",
        "adrfam": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(trtype: &str, traddr: &str, trsvcid: Option<&str>, adrfam: Option<&str>) -> Address {
        Address {
            trtype: trtype.to_owned(),
            traddr: traddr.to_owned(),
            trsvcid: trsvcid.map(str::to_owned),
            adrfam: adrfam.map(str::to_owned),
        }
    }

    #[test]
    fn an_address_is_read_and_shown() {
        let parsed = address("tcp", "::1", Some("4420"), Some("IPv6")).parse().unwrap();
        assert_eq!(parsed, "[::1]:4420".parse().unwrap());
        assert_eq!(
            shown(parsed),
            json!({"trtype": "TCP", "adrfam": "IPv6", "traddr": "::1", "trsvcid": "4420"})
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (given, expected) in [
            (address("RDMA", "127.0.0.1", Some("4420"), None), "trtype RDMA"),
            (address("TCP", "localhost", Some("4420"), None), "no IP address"),
            (address("TCP", "127.0.0.1", None, None), "trsvcid is missing"),
            (address("TCP", "127.0.0.1", Some("0"), None), "trsvcid is 0"),
            (
                address("TCP", "127.0.0.1", Some("4420"), Some("ipv6")),
                "adrfam is ipv6",
            ),
        ] {
            let error = given.parse().unwrap_err();
            assert!(
                error.code == -32602 && error.message.contains(expected),
                "{error}"
            );
        }
    }
}
