//! The service of certificates: first ones by tokens, next ones for nodes, and the tokens themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use control::{CreateJoinToken, JoinRole, JoinToken, JoinTokenId, NodeId};
use identity::{
    Granted, Identity, Issuer, IssuerError, Role, TokenId, Validity, Watched, requested_fingerprint,
    roots_text, unix_now,
};
use openssl::x509::X509;
use proto::v1;
use proto::v1::joining_server::Joining;
use tonic::codegen::http::Extensions;
use tonic::{Request, Response, Status};

use crate::access::{about, caller_identity};
use crate::engine::Control;
use crate::service::Face;

/// How long a certificate holds that a node got for its last one.
const RENEWED_DAYS: u32 = 90;
/// Certificates hold from a little before they are made, since clocks differ.
const BACKDATED_SECONDS: i64 = 300;

/// What a master issues certificates with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Office {
    /// Where its issuer is: read anew for each certificate, so that another one serves once it is there.
    pub(crate) issuer: Option<PathBuf>,
    /// Its own, with the roots that it trusts.
    pub(crate) credentials: Option<Arc<Watched>>,
}

impl Office {
    fn roots(&self) -> Result<Vec<X509>, Status> {
        match &self.credentials {
            Some(watched) => Ok(watched.current().0.authorities().to_vec()),
            None => Err(Status::failed_precondition(
                "this master has no credentials and answers anyone, so nobody has to join; start it with --credentials and \
                 --issuer to have it issue certificates",
            )),
        }
    }

    fn directory(&self) -> Result<&Path, Status> {
        let lacking = || {
            Status::failed_precondition(
                "this master has no issuer; make one where the authority is (\"redhare ca issuer CA --out ISSUER\"), copy it \
                 to the masters and start them with --issuer ISSUER",
            )
        };
        self.issuer.as_deref().ok_or_else(lacking)
    }

    /// Reads a file, which is small and local.
    fn open(&self) -> Result<Issuer, Status> {
        Issuer::open(self.directory()?).map_err(refuse)
    }

    fn issue(&self, request: &[u8], role: Role, name: &str, validity: Validity) -> Result<Granted, Status> {
        let issued = self.open()?.issue(request, role, name, validity, &self.roots()?);
        issued.map_err(refuse)
    }

    fn roots_text(&self) -> Result<Vec<u8>, Status> {
        roots_text(&self.roots()?).map_err(|error| Status::internal(format!("OpenSSL: {error}")))
    }
}

fn refuse(error: IssuerError) -> Status {
    let text = error.to_string();
    match error {
        IssuerError::Request { .. } | IssuerError::Role { .. } => Status::invalid_argument(text),
        _ => Status::failed_precondition(text),
    }
}

fn role_of(role: JoinRole) -> Role {
    match role {
        JoinRole::Node => Role::Node,
        JoinRole::Client => Role::Client,
        JoinRole::ReadOnly => Role::ReadOnly,
    }
}

/// The name of who joins with a key of this hash.
fn name_of(token: &JoinToken, key_sha256: &[u8; 32]) -> String {
    match (token.role, token.name.as_str()) {
        (JoinRole::Node, "") => TokenId(token.id.0).node_name(key_sha256).to_string(),
        (role, "") => format!("{}-{}", role_of(role), token.id),
        (_, name) => name.to_owned(),
    }
}

fn to_wire(token: &JoinToken) -> v1::JoinToken {
    let role = match token.role {
        JoinRole::Node => v1::JoinRole::Node,
        JoinRole::Client => v1::JoinRole::Client,
        JoinRole::ReadOnly => v1::JoinRole::ReadOnly,
    };
    let left = i128::from(token.expires_unix_s) - i128::from(now_unix_s());
    v1::JoinToken {
        id: token.id.0.to_vec(),
        role: role.into(),
        name: token.name.clone(),
        uses: token.uses,
        uses_left: token.uses_left(),
        created_unix_s: token.created_unix_s,
        expires_unix_s: token.expires_unix_s,
        left_s: i64::try_from(left).unwrap_or(i64::MAX),
        certificate_s: token.certificate_term.as_secs(),
        creator: token.creator.clone(),
        joined: token.joined.iter().map(|key| name_of(token, key)).collect(),
    }
}

fn now_unix_s() -> u64 {
    u64::try_from(unix_now()).unwrap_or(0)
}

fn token_id(bytes: &[u8]) -> Result<JoinTokenId, Status> {
    let id = bytes.try_into().map(JoinTokenId);
    id.map_err(|_| {
        let length = bytes.len();
        Status::invalid_argument(format!(
            "id has {length} bytes; send the 8 bytes of a join token's id"
        ))
    })
}

/// The node that calls, and nobody else.
fn calling_node(extensions: &Extensions) -> Result<&Identity, Status> {
    let caller = caller_identity(extensions).filter(|identity| identity.role == Role::Node);
    caller.ok_or_else(|| {
        Status::permission_denied(
            "only a node renews its own certificate here; others get another one by a token, or from \"redhare ca renew\"",
        )
    })
}

#[tonic::async_trait]
impl Joining for Face {
    async fn get_roots(
        &self,
        _: Request<v1::GetRootsRequest>,
    ) -> Result<Response<v1::GetRootsResponse>, Status> {
        let issuer = match &self.office.issuer {
            Some(_) => self.office.open()?.chain_text().map_err(refuse)?,
            None => Vec::new(),
        };
        let roots = self.office.roots_text()?;
        Ok(Response::new(v1::GetRootsResponse { roots, issuer }))
    }

    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let id = token_id(&request.id)?;
        about(&extensions, || format!("token {id}"));
        // What cannot succeed takes no use.
        self.office.open()?.check(&self.office.roots()?).map_err(refuse)?;
        let key = requested_fingerprint(&request.request).map_err(refuse)?;
        let secret = TokenId(id.0).secret_sha256(&request.secret);
        let asked = request.name;
        let call = move |control: &mut Control, _| control.join(id, &secret, &key, &asked, now_unix_s());
        let token = self.engine.call(call).await?;
        let (role, name) = (role_of(token.role), name_of(&token, &key));
        about(&extensions, || format!("token {id}, {role} {name}"));
        let now = unix_now();
        let term = i64::try_from(token.certificate_term.as_secs()).unwrap_or(i64::MAX);
        let validity = Validity {
            // What ends soon did not begin long ago: a third of its life is looked at.
            from: now - BACKDATED_SECONDS.min(term / 10),
            until: now.saturating_add(term),
        };
        let granted = self.office.issue(&request.request, role, &name, validity)?;
        Ok(Response::new(v1::JoinResponse {
            certificates: granted.chain,
            roots: self.office.roots_text()?,
        }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let name = calling_node(&extensions)?.name.clone();
        about(&extensions, || format!("node {name}"));
        let bad = |_| Status::permission_denied(format!("\"{name}\" is no node's name, which is a UUID"));
        let node: control::Uuid = name.parse().map_err(bad)?;
        // One that was removed ends with the certificate that it has.
        let call = move |control: &mut Control, _| control.check_not_removed(NodeId(node));
        self.engine.call(call).await?;
        let validity = Validity::days(RENEWED_DAYS);
        let granted = self.office.issue(&request.request, Role::Node, &name, validity)?;
        Ok(Response::new(v1::RenewResponse {
            certificates: granted.chain,
            roots: self.office.roots_text()?,
        }))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let role = match request.role() {
            v1::JoinRole::Node => JoinRole::Node,
            v1::JoinRole::Client => JoinRole::Client,
            v1::JoinRole::ReadOnly => JoinRole::ReadOnly,
            v1::JoinRole::Unspecified => {
                return Err(Status::invalid_argument(
                    "role is missing; send node, client or read-only",
                ));
            }
        };
        let roots = self.office.roots()?;
        // A token that nobody could use is none.
        self.office.open()?.check(&roots).map_err(refuse)?;
        // While the authority is rotated the old root stands last, and is the one by which every master can prove itself.
        let root = roots
            .last()
            .ok_or_else(|| Status::internal("credentials without a root; report this"))?;
        let token = identity::JoinToken::new(root)
            .map_err(|error| Status::internal(format!("no token can be made: OpenSSL: {error}")))?;
        let create = CreateJoinToken {
            id: JoinTokenId(token.id().0),
            secret_sha256: token.id().secret_sha256(token.secret()),
            role,
            // A node's as certificates have it, with its hyphens.
            name: match (role, request.name.parse::<identity::Cluster>()) {
                (JoinRole::Node, Ok(uuid)) => uuid.to_string(),
                _ => request.name,
            },
            uses: request.uses,
            life: Duration::from_secs(request.expires_s),
            certificate_term: Duration::from_secs(request.certificate_s),
            creator: caller_identity(&extensions).map_or(String::new(), |identity| identity.name.clone()),
        };
        about(&extensions, || {
            let (id, uses, life) = (create.id, create.uses, create.life.as_secs());
            let name = match create.name.as_str() {
                "" => String::new(),
                name => format!(" {name:?}"),
            };
            format!("token {id} for {}{name}, {uses} uses, {life} s", role_of(role))
        });
        let call = move |control: &mut Control, _| control.create_join_token(&create, now_unix_s());
        let made = self.engine.call(call).await?;
        Ok(Response::new(v1::CreateTokenResponse {
            text: token.text().to_string(),
            token: Some(to_wire(&made)),
        }))
    }

    async fn list_tokens(
        &self,
        _: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        let tokens = self.engine.read(|control, _| control.join_tokens()).await?;
        Ok(Response::new(v1::ListTokensResponse {
            tokens: tokens.iter().map(to_wire).collect(),
        }))
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let id = token_id(&request.id)?;
        about(&extensions, || format!("token {id}"));
        let call = move |control: &mut Control, _| control.revoke_join_token(id);
        self.engine.call(call).await?;
        Ok(Response::new(v1::RevokeTokenResponse {}))
    }
}
