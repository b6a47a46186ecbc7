//! `redhare ca token`: tokens by which nodes and clients come to their certificates.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use identity::{JoinToken, TokenId};
use master::v1;

use super::super::cluster::ClusterArguments;
use super::super::node::parse_interval;
use crate::output::{Failure, Output, table};

/// Where a token may stand instead of on a command line, which others can read.
const VARIABLE: &str = "REDHARE_JOIN";

/// Make, list and revoke tokens, with which nodes and clients join without anybody carrying keys
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Example:\n  redhare ca token create --role node --uses 3 --expires 2h\n  redhare ca token list\n  \
    redhare ca token revoke 5f0c1e9a77d2b384"
)]
pub(crate) struct TokenArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Make a token and print it, this once: whoever has it joins
    #[command(
        after_help = "Example:\n  redhare ca token create --role node --uses 3 --expires 2h\n\n\
        For a node that exists and has no credentials (any more), as it stays the one that it is:\n  \
        redhare ca token create --role node --name 0b6e61f2-8f0d-4d6b-9d3a-6a3c1c1f2a77"
    )]
    Create {
        /// What its bearer becomes
        #[arg(long, value_enum, default_value = "node")]
        role: Role,
        /// The name that its bearer gets; of a node its UUID. By default a new node, and a client is named after the token
        #[arg(long)]
        name: Option<String>,
        /// How many may join with it
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(control::JOIN_USES_MAX)))]
        uses: u32,
        /// How long it serves: seconds, or 30m, 24h, 7d
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_interval)]
        expires: Duration,
        /// How long the certificates hold that are had by it, but no longer than the masters' issuer; a node renews its own in time
        #[arg(long, value_name = "TIME", default_value = "90d", value_parser = parse_interval)]
        certificate_lasts: Duration,
    },
    /// Show the tokens, without their secrets, and who has joined by them
    #[command(after_help = "Example:\n  redhare ca token list")]
    List,
    /// Have nobody join by a token any more; who has joined stays
    #[command(after_help = "Example:\n  redhare ca token revoke 5f0c1e9a77d2b384")]
    Revoke {
        /// The token's id, as "redhare ca token list" shows it; it is no secret
        id: TokenId,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Node,
    Client,
    ReadOnly,
}

#[derive(serde::Serialize)]
struct TokenView {
    id: String,
    /// The token itself, when it was just made.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    role: &'static str,
    name: Option<String>,
    uses: u32,
    uses_left: u32,
    /// By the master's clock; 0 once it has expired.
    expires_seconds: u64,
    certificate_seconds: u64,
    creator: String,
    joined: Vec<String>,
    usable: bool,
}

fn view(token: &v1::JoinToken, text: Option<String>) -> TokenView {
    let role = match token.role() {
        v1::JoinRole::Node => "node",
        v1::JoinRole::Client => "client",
        v1::JoinRole::ReadOnly => "read-only",
        v1::JoinRole::Unspecified => "unknown",
    };
    TokenView {
        id: id_text(&token.id),
        token: text,
        role,
        name: Some(token.name.clone()).filter(|name| !name.is_empty()),
        uses: token.uses,
        uses_left: token.uses_left,
        expires_seconds: u64::try_from(token.left_s).unwrap_or(0),
        certificate_seconds: token.certificate_s,
        creator: token.creator.clone(),
        joined: token.joined.clone(),
        usable: token.uses_left > 0 && token.left_s > 0,
    }
}

fn id_text(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn run(arguments: TokenArguments, output: &Output) -> Result<(), Failure> {
    let cluster = &arguments.cluster;
    match arguments.command {
        TokenCommand::Create {
            role,
            name,
            uses,
            expires,
            certificate_lasts,
        } => {
            let request = v1::CreateTokenRequest {
                role: match role {
                    Role::Node => v1::JoinRole::Node,
                    Role::Client => v1::JoinRole::Client,
                    Role::ReadOnly => v1::JoinRole::ReadOnly,
                }
                .into(),
                name: name.unwrap_or_default(),
                uses,
                expires_s: expires.as_secs(),
                certificate_s: certificate_lasts.as_secs(),
            };
            let answer = cluster.call(|client| async move { client.create_token(request).await })?;
            let view = view(&answer.token.unwrap_or_default(), Some(answer.text));
            output.print(&view, || describe_new(&view, role));
        }
        TokenCommand::List => {
            let request = v1::ListTokensRequest {};
            let answer = cluster.call(|client| async move { client.list_tokens(request).await })?;
            let views: Vec<TokenView> = answer.tokens.iter().map(|token| view(token, None)).collect();
            output.print(&views, || describe(&views));
        }
        TokenCommand::Revoke { id } => {
            let request = v1::RevokeTokenRequest { id: id.0.to_vec() };
            cluster.call(|client| async move { client.revoke_token(request).await })?;
            let view = serde_json::json!({ "id": id.to_string(), "revoked": true });
            output.print(&view, || {
                format!("nobody joins by token {id} any more; who has joined stays")
            });
        }
    }
    Ok(())
}

fn describe_new(view: &TokenView, role: Role) -> String {
    let token = view.token.as_deref().unwrap_or_default();
    let example = match role {
        Role::Node => {
            "redhare node --master ADDRESS --join-file FILE --credentials /etc/redhare/node --listen ADDR --disk DISK"
        }
        _ => "redhare ca join --master ADDRESS --token-file FILE --out DIR",
    };
    format!(
        "{token}\n\nwhoever has it joins as {}, {} in all, for {}: give it as you would a password (a file, or {VARIABLE} in the \
         environment)\nthere: {example}\n",
        view.role,
        view.uses,
        time(view.expires_seconds)
    )
}

fn describe(views: &[TokenView]) -> String {
    if views.is_empty() {
        return "there are no join tokens; \"redhare ca token create\" makes one".to_owned();
    }
    let mut rows = vec![
        ["TOKEN", "ROLE", "NAME", "LEFT", "EXPIRES", "BY", "JOINED"]
            .map(String::from)
            .to_vec(),
    ];
    for view in views {
        rows.push(vec![
            view.id.clone(),
            view.role.to_owned(),
            view.name.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{} of {}", view.uses_left, view.uses),
            match view.expires_seconds {
                0 => "EXPIRED".to_owned(),
                seconds => format!("in {}", time(seconds)),
            },
            view.creator.clone(),
            view.joined.join(" "),
        ]);
    }
    table(&rows)
}

/// In the largest unit that says it.
fn time(seconds: u64) -> String {
    match seconds {
        172_800.. => format!("{} days", seconds / 86_400),
        7200.. => format!("{} hours", seconds / 3600),
        120.. => format!("{} minutes", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

/// The token that was given as an argument, in a file or in the environment; none if none was.
pub(crate) fn given(text: Option<String>, file: Option<&Path>) -> Result<Option<JoinToken>, Failure> {
    let variable = || std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let text = match (text, file) {
        (Some(text), _) => Some(text),
        (None, Some(path)) => Some(read(path)?),
        (None, None) => variable(),
    };
    let parse = |text: String| text.parse().map_err(Failure::new);
    text.map(parse).transpose()
}

/// The first line with something in it: what "redhare ca token create" prints has words for people below the token.
fn read(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(format!(
            "the file with the join token {} cannot be read: {error}; put there what \"redhare ca token create\" printed",
            path.display()
        ))
    })?;
    let mut lines = text.lines().map(str::trim);
    Ok(lines.find(|line| !line.is_empty()).unwrap_or_default().to_owned())
}

/// Come to a certificate with a token: a key is made here and stays here
#[derive(Args)]
#[command(
    after_help = "Example:\n  redhare ca join --master 192.0.2.1:7400 --token-file token --out ~/trainer\n  \
    redhare status --cluster 192.0.2.1:7400 --credentials ~/trainer\n\n\
    The master is known by the token, and nothing of it is sent to another one. A node does the same by itself:\n\
    \"redhare node --join-file FILE --credentials DIR\"."
)]
pub(crate) struct JoinArguments {
    /// The masters: host:port, several separated by commas
    #[arg(long, value_name = "ADDRS")]
    master: String,
    /// The token, as "redhare ca token create" printed it [env: REDHARE_JOIN]
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// A file with the token, so that it is on no command line
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Who this is already: the UUID of a node that exists. The token has to be for it
    #[arg(long)]
    name: Option<String>,
    /// Where ca.pem, cert.pem and key.pem are put
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn join(arguments: JoinArguments, output: &Output) -> Result<(), Failure> {
    let JoinArguments {
        master,
        token,
        token_file,
        name,
        out,
    } = arguments;
    let token = given(token, token_file.as_deref())?.ok_or_else(|| {
        Failure::new(format!(
            "no join token was given; give --token-file FILE or --token TOKEN, or set {VARIABLE}"
        ))
    })?;
    if identity::Files::in_directory(&out).has_certificate() {
        return Err(Failure::new(format!(
            "there are credentials in {} already; name another directory, or remove them",
            out.display()
        )));
    }
    let runtime = super::super::cluster::runtime()?;
    let joined = runtime.block_on(master::join(&master, &token, &name.unwrap_or_default()));
    let issued = joined.map_err(Failure::new)?;
    issued.write(&out).map_err(Failure::new)?;
    let view = super::issued_view(&issued.identity, &out);
    output.print(&view, || super::describe_issued(&view));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "rhjoin1.01020304050607f8.abababababababababababababababab.\
        cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd";

    #[test]
    fn a_token_is_read_from_a_file_and_never_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let error = given(None, Some(&path)).unwrap_err().to_string();
        assert!(
            error.contains("cannot be read") && error.contains("redhare ca token create"),
            "{error}"
        );
        std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
        let read = given(None, Some(&path)).unwrap().unwrap();
        assert_eq!(read.id().to_string(), "01020304050607f8");
        // All that was printed.
        let token = v1::JoinToken {
            id: vec![1; 8],
            left_s: 100,
            ..v1::JoinToken::default()
        };
        let printed = describe_new(&view(&token, Some(TOKEN.to_owned())), Role::Node);
        assert!(printed.lines().count() > 2, "{printed}");
        for text in [printed.clone(), format!("\n \r\n{printed}")] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(given(None, Some(&path)).unwrap().as_ref(), Some(&read));
        }
        assert_eq!(given(Some(TOKEN.to_owned()), None).unwrap(), Some(read));
        let error = given(Some(TOKEN.replace("rhjoin1", "other")), None)
            .unwrap_err()
            .to_string();
        assert!(!error.contains("abab"), "{error}");
    }

    #[test]
    fn times_are_said_in_the_largest_unit_that_says_them() {
        for (seconds, said) in [
            (0, "0 s"),
            (90, "90 s"),
            (600, "10 minutes"),
            (86_400, "24 hours"),
            (604_800, "7 days"),
        ] {
            assert_eq!(time(seconds), said);
        }
    }
}
