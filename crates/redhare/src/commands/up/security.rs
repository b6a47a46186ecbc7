//! `redhare up --tls`: an authority of its own, and credentials for each of its processes and for whoever started it.

use std::path::{Path, PathBuf};

use identity::{Authority, Cluster, Credentials, Files, Issue, Issuer, Role, Validity};

use crate::commands::ca::ISSUER_DAYS;
use crate::output::Failure;

/// Credentials are made anew at the start when they would end within so many days.
const RENEWED_DAYS: i64 = 60;
/// The issuer, too, before it cuts short what it issues.
const ISSUER_RENEWED_DAYS: i64 = 120;
/// How long they hold.
const DAYS: u32 = 365;
/// How long the root does.
const ROOT_DAYS: u32 = 3650;

/// Where the credentials of a process are, or with "admin" those of the user.
pub(super) fn directory(data: &Path, who: &str) -> PathBuf {
    data.join("credentials").join(who)
}

/// Where the master's issuer is.
pub(super) fn issuer(data: &Path) -> PathBuf {
    directory(data, "issuer")
}

/// Makes what is missing or ends soon, for the master, so many nodes and the user.
pub(super) fn prepare(data: &Path, nodes: u16) -> Result<(), Failure> {
    let place = data.join("ca");
    let authority = match place.join("authority.pem").exists() {
        true => Authority::open(&place),
        false => {
            // A cluster that was run without keeps its identity.
            let known = agent::identity_of(&data.join("node1"));
            let cluster = known.and_then(|(_, cluster)| Cluster::from_bytes(cluster.to_be_bytes()));
            Authority::init(&place, cluster, Validity::days(ROOT_DAYS))
        }
    };
    let authority = authority.map_err(Failure::new)?;
    let addresses = ["127.0.0.1", "localhost"].map(str::to_owned).to_vec();
    make(&authority, data, "master", Role::Master, None, addresses)?;
    let place = issuer(data);
    let ends = Issuer::open(&place).and_then(|issuer| issuer.summary());
    let ends = ends.map_or(0, |summary| summary.not_after);
    if (ends - identity::unix_now()).div_euclid(86_400) < ISSUER_RENEWED_DAYS {
        let made = authority.issuer(Validity::days(ISSUER_DAYS));
        made.and_then(|made| made.write(&place)).map_err(Failure::new)?;
    }
    make(&authority, data, "admin", Role::Admin, None, Vec::new())?;
    for number in 1..=nodes {
        let name = format!("node{number}");
        let known = agent::identity_of(&data.join(&name));
        let node = known.and_then(|(node, _)| Cluster::from_bytes(node.to_be_bytes()));
        let node = node.map(|node| node.to_string());
        make(&authority, data, &name, Role::Node, node, Vec::new())?;
    }
    Ok(())
}

fn make(
    authority: &Authority,
    data: &Path,
    who: &str,
    role: Role,
    name: Option<String>,
    addresses: Vec<String>,
) -> Result<(), Failure> {
    let place = directory(data, who);
    let files = Files::in_directory(&place);
    if let Ok(credentials) = Credentials::load(&files)
        && credentials.identity().days_left() >= RENEWED_DAYS
    {
        return Ok(());
    }
    let validity = Validity::days(DAYS);
    let issued = match files.certificate.exists() {
        // A node stays the one that it is.
        true => authority.renew(&files, validity),
        false => authority.issue(&Issue {
            role,
            name,
            addresses,
            validity,
        }),
    };
    issued
        .and_then(|issued| issued.write(&place))
        .map_err(Failure::new)?;
    Ok(())
}
