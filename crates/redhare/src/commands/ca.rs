//! `redhare ca`: the cluster's certificate authority.

pub(crate) mod token;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use identity::{Authority, Cluster, Files, Identity, Issue, Issuer, Role, Summary, Validity, unix_now};

use crate::output::{Failure, Output, table};

/// What ends within so many days is spoken of.
const WARNING_DAYS: i64 = 30;
/// How long certificates hold, unless it is said otherwise.
const DAYS: u32 = 365;
/// How long an issuer does.
pub(crate) const ISSUER_DAYS: u32 = 1825;

/// Make and rotate the cluster's certificate authority, and give certificates to masters, nodes and people
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Example:\n  redhare ca init ~/redhare-ca\n  redhare ca issue ~/redhare-ca --role master --address 192.0.2.1 --out master1\n  \
    redhare ca issue ~/redhare-ca --role node --out node1\n  redhare ca issue ~/redhare-ca --role admin --name alice --out alice\n  \
    redhare master --listen 192.0.2.1:7400 --credentials master1\n  \
    redhare node --master 192.0.2.1:7400 --credentials node1 --listen 192.0.2.5:4420 --disk /dev/nvme0n1\n  \
    redhare status --cluster 192.0.2.1:7400 --credentials alice\n\n\
    Or have nodes and clients join by tokens, so that nobody carries keys:\n  redhare ca issuer ~/redhare-ca --out issuer\n  \
    redhare master --listen 192.0.2.1:7400 --credentials master1 --issuer issuer\n  \
    redhare ca token create --role node --cluster 192.0.2.1:7400 --credentials alice"
)]
pub(crate) struct CaArguments {
    #[command(subcommand)]
    command: CaCommand,
}

#[derive(Subcommand)]
enum CaCommand {
    /// Make an authority: its key stays in the directory, which belongs on a machine that few can reach
    #[command(after_help = "Example:\n  redhare ca init ~/redhare-ca\n\n\
        For a cluster that exists, with the identity that \"redhare status\" shows:\n  \
        redhare ca init ~/redhare-ca --cluster-id 0b6e61f2-8f0d-4d6b-9d3a-6a3c1c1f2a77")]
    Init {
        /// Where it is kept; made if it is not there
        directory: PathBuf,
        /// The cluster's identity; by default a new one, which the masters found their cluster with
        #[arg(long, value_name = "UUID")]
        cluster_id: Option<Cluster>,
        /// How long its root holds
        #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
    },
    /// Issue a certificate with a new key, as a directory to be given with --credentials
    #[command(
        after_help = "Example:\n  redhare ca issue ~/redhare-ca --role read-only --name grafana --out grafana\n\n\
        Roles: admin may do everything; node be the node that its certificate names; client use volumes and leases;\n\
        read-only look, and read what is in volumes; master be a master, by the addresses that its certificate has."
    )]
    Issue {
        /// The authority's directory
        directory: PathBuf,
        /// What its holder may do: admin, node, client, read-only or master
        #[arg(long)]
        role: Role,
        /// Who it is for, as it stands in the audit log; of a node its UUID, drawn if not given
        #[arg(long)]
        name: Option<String>,
        /// A host name or IP address by which others reach this master; may be given several times
        #[arg(long, value_name = "HOST")]
        address: Vec<String>,
        /// How long it holds, but no longer than the authority's root
        #[arg(long, default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
        /// Where ca.pem, cert.pem and key.pem are put
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Replace a key or certificate that is there
        #[arg(long)]
        force: bool,
    },
    /// Make an issuer for the masters: with it they give certificates to nodes and clients, and to nobody else
    #[command(
        after_help = "Example:\n  redhare ca issuer ~/redhare-ca --out issuer\n  (copy it to every master)\n  \
        redhare master --listen 192.0.2.1:7400 --credentials master1 --issuer issuer\n  redhare ca token create --role node"
    )]
    Issuer {
        /// The authority's directory
        directory: PathBuf,
        /// How long it holds, but no longer than the authority's root; what it gives ends with it
        #[arg(long, default_value_t = ISSUER_DAYS, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
        /// Where issuer.pem is put, with the issuer's key in it
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Replace a key or certificate that is there
        #[arg(long)]
        force: bool,
    },
    Token(token::TokenArguments),
    Join(token::JoinArguments),
    /// Issue anew what directories hold: same role, name and addresses, new key and the authorities of now
    #[command(after_help = "Example:\n  redhare ca renew ~/redhare-ca master1 node1 node2 alice")]
    Renew {
        /// The authority's directory
        directory: PathBuf,
        /// Directories that "redhare ca issue", "redhare ca join" or "redhare ca issuer" made
        #[arg(required = true)]
        credentials: Vec<PathBuf>,
        /// How long they hold, but no longer than the authority's root [default: 365, of an issuer 1825]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: Option<u32>,
    },
    /// Say what an authority trusts and has issued, or what a directory of credentials holds, and what ends soon
    #[command(after_help = "Example:\n  redhare ca show ~/redhare-ca\n  redhare ca show master1")]
    Show {
        /// The authority's directory, or one with credentials or an issuer
        directory: PathBuf,
    },
    /// Replace the root's key: the old root is trusted until --finish, so that credentials are renewed in any order
    #[command(
        after_help = "Example:\n  redhare ca rotate ~/redhare-ca\n  redhare ca renew ~/redhare-ca master1 node1 alice\n  \
        (put each in its place; masters and nodes that run take them by themselves)\n  redhare ca rotate ~/redhare-ca --finish\n  \
        redhare ca renew ~/redhare-ca master1 node1 alice\n\n\
        Only the second round takes the old root away from those who trust it."
    )]
    Rotate {
        /// The authority's directory
        directory: PathBuf,
        /// Trust the old root no more
        #[arg(long)]
        finish: bool,
        /// How long the new root holds
        #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
    },
}

#[derive(serde::Serialize)]
struct RootRow {
    subject: String,
    serial: String,
    key_sha256: String,
    days_left: i64,
    /// Certificates are issued by this one.
    issues: bool,
}

#[derive(serde::Serialize)]
struct IssuerRow {
    subject: String,
    serial: String,
    days_left: i64,
    /// The root that issues now has signed it; of an authority only.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_current_root: Option<bool>,
}

#[derive(serde::Serialize)]
struct IssuerView {
    cluster: String,
    directory: PathBuf,
    #[serde(flatten)]
    issuer: IssuerRow,
}

#[derive(serde::Serialize)]
struct HolderRow {
    role: &'static str,
    name: String,
    serial: String,
    addresses: Vec<String>,
    days_left: i64,
    /// The root that issues now has signed it; of an authority only.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_current_root: Option<bool>,
}

#[derive(serde::Serialize)]
struct AuthorityView {
    cluster: String,
    directory: PathBuf,
    roots: Vec<RootRow>,
    /// Those that were made here and have not ended.
    issuers: Vec<IssuerRow>,
    issued: Vec<HolderRow>,
}

#[derive(serde::Serialize)]
struct IssuedView {
    cluster: String,
    directory: PathBuf,
    #[serde(flatten)]
    holder: HolderRow,
}

pub(crate) fn run(arguments: CaArguments, output: &Output) -> Result<(), Failure> {
    match arguments.command {
        CaCommand::Init {
            directory,
            cluster_id,
            days,
        } => {
            let made = Authority::init(&directory, cluster_id, Validity::days(days)).map_err(Failure::new)?;
            let view = view(&made, &directory)?;
            output.print(&view, || {
                format!(
                    "{}the root's key is in {}: keep it on a machine that few can reach, and a copy\n\
                     next: redhare ca issue {} --role master --address HOST --out master1",
                    describe(&view),
                    directory.join("authority.pem").display(),
                    directory.display()
                )
            });
            Ok(())
        }
        CaCommand::Issue {
            directory,
            role,
            name,
            address,
            days,
            out,
            force,
        } => {
            let authority = open(&directory)?;
            check_room(&out, Put::Holder, force)?;
            let issue = Issue {
                role,
                name,
                addresses: address,
                validity: Validity::days(days),
            };
            let issued = authority.issue(&issue).map_err(Failure::new)?;
            issued.write(&out).map_err(Failure::new)?;
            let view = issued_view(&issued.identity, &out);
            output.print(&view, || describe_issued(&view));
            Ok(())
        }
        CaCommand::Issuer {
            directory,
            days,
            out,
            force,
        } => {
            let authority = open(&directory)?;
            check_room(&out, Put::Issuer, force)?;
            let view = make_issuer(&authority, days, &out)?;
            output.print(&view, || {
                format!(
                    "{}next: copy it to every master, and start each with --issuer {}",
                    describe_issuer(&view),
                    out.display()
                )
            });
            Ok(())
        }
        CaCommand::Token(arguments) => token::run(arguments, output),
        CaCommand::Join(arguments) => token::join(arguments, output),
        CaCommand::Renew {
            directory,
            credentials,
            days,
        } => renew(&directory, &credentials, days, output),
        CaCommand::Show { directory } => show(&directory, output),
        CaCommand::Rotate {
            directory,
            finish,
            days,
        } => {
            let mut authority = open(&directory)?;
            match finish {
                true => authority.finish(),
                false => authority.rotate(Validity::days(days)),
            }
            .map_err(Failure::new)?;
            let view = view(&authority, &directory)?;
            let place = directory.display();
            let issuer = match view.issuers.is_empty() {
                true => String::new(),
                false => format!(
                    "; renew the issuer, too (\"redhare ca renew {place} ISSUER\"), and put it where masters have it"
                ),
            };
            output.print(&view, || match finish {
                true => format!(
                    "{}the old root is trusted no more by what is issued from now on; renew all credentials once more \
                     (\"redhare ca renew {place} DIR...\"), and nobody trusts it",
                    describe(&view)
                ),
                false => format!(
                    "{}renew all credentials now, in any order (\"redhare ca renew {place} DIR...\"){issuer}; then \"redhare \
                     ca rotate {place} --finish\"",
                    describe(&view)
                ),
            });
            Ok(())
        }
    }
}

fn open(directory: &Path) -> Result<Authority, Failure> {
    Authority::open(directory).map_err(Failure::new)
}

/// What is put into a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Put {
    /// `ca.pem`, `cert.pem` and `key.pem`.
    Holder,
    /// `issuer.pem`.
    Issuer,
}

/// Whether it may be put there: a key that is replaced is gone.
fn check_room(out: &Path, put: Put, force: bool) -> Result<(), Failure> {
    let shown = out.display();
    if put == Put::Holder && out.join("authority.pem").exists() {
        return Err(Failure::new(format!(
            "{shown} is the directory of a certificate authority, whose ca.pem would be replaced; name another one with --out"
        )));
    }
    let files: &[&str] = match put {
        Put::Holder => &["key.pem", "cert.pem"],
        Put::Issuer => &["issuer.pem"],
    };
    match files.iter().find(|file| out.join(file).exists()) {
        Some(file) if !force => Err(Failure::new(format!(
            "there is a {file} in {shown} already, and nothing was issued; \"redhare ca renew\" makes anew what is there, --force \
             replaces it, or name another directory with --out"
        ))),
        _ => Ok(()),
    }
}

fn make_issuer(authority: &Authority, days: u32, out: &Path) -> Result<IssuerView, Failure> {
    let issuer = authority.issuer(Validity::days(days)).map_err(Failure::new)?;
    issuer.write(out).map_err(Failure::new)?;
    issuer_view(&issuer, out)
}

fn issuer_view(issuer: &Issuer, directory: &Path) -> Result<IssuerView, Failure> {
    Ok(IssuerView {
        cluster: issuer.cluster().to_string(),
        directory: directory.to_owned(),
        issuer: issuer_row(issuer.summary().map_err(Failure::new)?, None),
    })
}

fn issuer_row(issuer: Summary, by_current_root: Option<bool>) -> IssuerRow {
    IssuerRow {
        days_left: days_left(issuer.not_after),
        subject: issuer.subject,
        serial: issuer.serial,
        by_current_root,
    }
}

/// What was made anew in a directory.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Renewed {
    Holder(IssuedView),
    Issuer(IssuerView),
}

fn renew(
    directory: &Path,
    credentials: &[PathBuf],
    days: Option<u32>,
    output: &Output,
) -> Result<(), Failure> {
    let authority = open(directory)?;
    let mut views = Vec::new();
    for (done, place) in credentials.iter().enumerate() {
        let view = renew_one(&authority, place, days).map_err(|failure| {
            let before: Vec<_> = credentials[..done]
                .iter()
                .map(|place| place.display().to_string())
                .collect();
            match done {
                0 => failure,
                _ => Failure::new(format!(
                    "{failure}. Made anew before that, and not to be repeated: {}",
                    before.join(", ")
                )),
            }
        })?;
        views.extend(view);
    }
    output.print(&views, || {
        let lines = views.iter().map(|view| match view {
            Renewed::Holder(view) => describe_issued(view),
            Renewed::Issuer(view) => describe_issuer(view),
        });
        lines.collect()
    });
    Ok(())
}

fn renew_one(authority: &Authority, place: &Path, days: Option<u32>) -> Result<Vec<Renewed>, Failure> {
    let mut renewed = Vec::new();
    let files = Files::in_directory(place);
    if Issuer::is_in(place) {
        let view = make_issuer(authority, days.unwrap_or(ISSUER_DAYS), place)?;
        renewed.push(Renewed::Issuer(view));
        if !files.certificate.exists() {
            return Ok(renewed);
        }
        if let Err(error) = authority.renew(&files, Validity::days(DAYS)) {
            // It may be of another authority, or have ended; the issuer is what was named.
            eprintln!(
                "the issuer in {} was made anew; the certificate beside it was not: {error}",
                place.display()
            );
            return Ok(renewed);
        }
    }
    let issued = authority
        .renew(&files, Validity::days(days.unwrap_or(DAYS)))
        .map_err(Failure::new)?;
    issued.write(place).map_err(Failure::new)?;
    renewed.push(Renewed::Holder(issued_view(&issued.identity, place)));
    Ok(renewed)
}

fn show(directory: &Path, output: &Output) -> Result<(), Failure> {
    let is_authority = directory.join("authority.pem").exists();
    if !is_authority && directory.join("cert.pem").exists() {
        let files = Files::in_directory(directory);
        let credentials = identity::Credentials::load(&files).map_err(Failure::new)?;
        let view = issued_view(credentials.identity(), directory);
        output.print(&view, || describe_issued(&view));
        return Ok(());
    }
    if !is_authority && Issuer::is_in(directory) {
        let view = issuer_view(&Issuer::open(directory).map_err(Failure::new)?, directory)?;
        output.print(&view, || describe_issuer(&view));
        return Ok(());
    }
    let view = view(&open(directory)?, directory)?;
    output.print(&view, || describe(&view));
    Ok(())
}

fn days_left(not_after: i64) -> i64 {
    (not_after - unix_now()).div_euclid(86_400)
}

fn view(authority: &Authority, directory: &Path) -> Result<AuthorityView, Failure> {
    let own = authority.root().map_err(Failure::new)?;
    let root = |root: Summary| RootRow {
        days_left: days_left(root.not_after),
        issues: root.serial == own.serial,
        subject: root.subject,
        serial: root.serial,
        key_sha256: root.key_sha256,
    };
    let issued = authority.issued().map_err(Failure::new)?;
    Ok(AuthorityView {
        cluster: authority.cluster().to_string(),
        directory: directory.to_owned(),
        roots: authority
            .trusted()
            .map_err(Failure::new)?
            .into_iter()
            .map(root)
            .collect(),
        issuers: authority
            .issuers()
            .map_err(Failure::new)?
            .into_iter()
            .map(|(issuer, is_current)| issuer_row(issuer, Some(is_current)))
            .collect(),
        issued: issued
            .into_iter()
            .map(|(identity, is_current)| holder(&identity, Some(is_current)))
            .collect(),
    })
}

fn holder(identity: &Identity, by_current_root: Option<bool>) -> HolderRow {
    HolderRow {
        role: identity.role.name(),
        name: identity.name.clone(),
        serial: identity.serial.clone(),
        addresses: identity.addresses.clone(),
        days_left: identity.days_left(),
        by_current_root,
    }
}

fn issued_view(identity: &Identity, directory: &Path) -> IssuedView {
    IssuedView {
        cluster: identity.cluster.to_string(),
        directory: directory.to_owned(),
        holder: holder(identity, None),
    }
}

fn describe_end(days: i64) -> String {
    match days {
        ..0 => "HAS ENDED".to_owned(),
        0..WARNING_DAYS => format!("ENDS in {days} days"),
        _ => format!("ends in {days} days"),
    }
}

fn describe_issuer(view: &IssuerView) -> String {
    format!(
        "{}: issuer of cluster {}, {}; masters take it with --issuer {0}\n",
        view.directory.display(),
        view.cluster,
        describe_end(view.issuer.days_left)
    )
}

fn describe_issued(view: &IssuedView) -> String {
    let HolderRow {
        role,
        name,
        days_left,
        addresses,
        ..
    } = &view.holder;
    let addresses = match addresses.is_empty() {
        true => String::new(),
        false => format!(" at {}", addresses.join(", ")),
    };
    format!(
        "{}: {role} \"{name}\"{addresses} of cluster {}, {}; use it with --credentials {0}\n",
        view.directory.display(),
        view.cluster,
        describe_end(*days_left)
    )
}

fn describe(view: &AuthorityView) -> String {
    let mut rows = vec![
        ["AUTHORITY", "KEY (SHA-256)", "ENDS", ""]
            .map(String::from)
            .to_vec(),
    ];
    for root in &view.roots {
        let what = if root.issues {
            "issues"
        } else {
            "trusted until --finish"
        };
        rows.push(vec![
            root.subject.clone(),
            root.key_sha256.clone(),
            describe_end(root.days_left),
            what.to_owned(),
        ]);
    }
    let mut text = format!(
        "authority of cluster {} in {}\n\n",
        view.cluster,
        view.directory.display()
    );
    for issuer in &view.issuers {
        let what = match issuer.by_current_root {
            Some(false) => "issuer, by an older root",
            _ => "issuer, for masters",
        };
        rows.push(vec![
            issuer.subject.clone(),
            String::new(),
            describe_end(issuer.days_left),
            what.to_owned(),
        ]);
    }
    text.push_str(&table(&rows));
    text.push('\n');
    if view.issued.is_empty() {
        return text;
    }
    let mut rows = vec![
        ["ROLE", "NAME", "ADDRESSES", "ENDS", ""]
            .map(String::from)
            .to_vec(),
    ];
    for holder in &view.issued {
        let old = match holder.by_current_root {
            Some(false) => "by an older root",
            _ => "",
        };
        rows.push(vec![
            holder.role.to_owned(),
            holder.name.clone(),
            holder.addresses.join(" "),
            describe_end(holder.days_left),
            old.to_owned(),
        ]);
    }
    text.push_str(&table(&rows));
    text.push('\n');
    let ending = view
        .issued
        .iter()
        .filter(|holder| holder.days_left < WARNING_DAYS)
        .count();
    if ending > 0 {
        text.push_str(&format!(
            "{ending} of them have ended or end within {WARNING_DAYS} days: \"redhare ca renew\" makes them anew\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_be_replaced_is_in_the_way() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path();
        let is_refused = |put, force| check_room(out, put, force).is_err();
        let both = |force| (is_refused(Put::Holder, force), is_refused(Put::Issuer, force));
        assert_eq!(both(false), (false, false));
        std::fs::write(out.join("cert.pem"), "").unwrap();
        assert_eq!((both(false), both(true)), ((true, false), (false, false)));
        std::fs::write(out.join("issuer.pem"), "").unwrap();
        std::fs::remove_file(out.join("cert.pem")).unwrap();
        assert_eq!((both(false), both(true)), ((false, true), (false, false)));
        std::fs::write(out.join("authority.pem"), "").unwrap();
        std::fs::remove_file(out.join("issuer.pem")).unwrap();
        assert_eq!((both(false), both(true)), ((true, false), (true, false)));
    }

    #[test]
    fn what_ends_is_spoken_of() {
        assert_eq!(describe_end(-1), "HAS ENDED");
        assert_eq!(describe_end(29), "ENDS in 29 days");
        assert_eq!(describe_end(30), "ends in 30 days");
    }
}
