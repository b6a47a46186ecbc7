//! Who may call what: one table, and the guard that stands before every service.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use identity::{Cluster, Identity, Role};
use tonic::body::Body;
use tonic::codegen::http::{Extensions, Request, Response};
use tonic::codegen::{BoxFuture, Context, Poll, Service};
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::audit::{AuditLog, Entry};
use crate::calls::Calls;
use crate::door::{Caller, Who};
use crate::whose::Whose;

/// What a method takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everybody over TLS, also without a certificate: who has yet to come to one.
    Anyone,
    /// To look, and to say that one reads: every role.
    Read,
    /// To use volumes: clients.
    Use,
    /// To be a node; which one, the method itself compares with the certificate ([`check_node`]).
    Node,
    /// To change the cluster: administrators.
    Admin,
}

impl Access {
    fn allows(self, role: Role) -> bool {
        match role {
            Role::Admin => true,
            Role::Node => matches!(self, Self::Anyone | Self::Read | Self::Node),
            Role::Client => matches!(self, Self::Anyone | Self::Read | Self::Use),
            Role::ReadOnly => matches!(self, Self::Anyone | Self::Read),
            // A master asks nobody.
            Role::Master => false,
        }
    }

    /// The least role that has it.
    fn role(self) -> Role {
        match self {
            Self::Anyone | Self::Read => Role::ReadOnly,
            Self::Use => Role::Client,
            Self::Node => Role::Node,
            Self::Admin => Role::Admin,
        }
    }
}

/// Whether a call that succeeded stands in the audit log. One that was refused always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audit {
    /// It changes nothing, or is what machines say all the time.
    No,
    Yes,
}

/// What each message of a stream of heartbeats stands for.
const HEARTBEAT: &str = "/redhare.v1.Nodes/Heartbeat";

/// Every method of `redhare.v1`.
const METHODS: &[(&str, Access, Audit)] = &[
    ("/redhare.v1.Cluster/GetIdentity", Access::Read, Audit::No),
    ("/redhare.v1.Cluster/GetStatus", Access::Read, Audit::No),
    ("/redhare.v1.Cluster/Rebalance", Access::Admin, Audit::Yes),
    ("/redhare.v1.Cluster/Restored", Access::Admin, Audit::Yes),
    ("/redhare.v1.Cluster/ForgetMaster", Access::Admin, Audit::Yes),
    ("/redhare.v1.Nodes/Register", Access::Node, Audit::Yes),
    (HEARTBEAT, Access::Node, Audit::No),
    ("/redhare.v1.Nodes/Heartbeats", Access::Node, Audit::No),
    ("/redhare.v1.Nodes/Drain", Access::Admin, Audit::Yes),
    ("/redhare.v1.Nodes/Restore", Access::Admin, Audit::Yes),
    ("/redhare.v1.Nodes/Remove", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/Create", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/List", Access::Read, Audit::No),
    ("/redhare.v1.Volumes/Show", Access::Read, Audit::No),
    ("/redhare.v1.Volumes/Resize", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/CreateClone", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/Flatten", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/Delete", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/Export", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/Unexport", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/MoveCopy", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/MoveWrites", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/PinWrites", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/SetSyncWrites", Access::Admin, Audit::Yes),
    ("/redhare.v1.Volumes/ShowUnserved", Access::Admin, Audit::No),
    ("/redhare.v1.Volumes/ForceServe", Access::Admin, Audit::Yes),
    ("/redhare.v1.Snapshots/Begin", Access::Admin, Audit::Yes),
    ("/redhare.v1.Snapshots/Complete", Access::Admin, Audit::Yes),
    ("/redhare.v1.Snapshots/Abort", Access::Admin, Audit::Yes),
    ("/redhare.v1.Snapshots/List", Access::Read, Audit::No),
    ("/redhare.v1.Snapshots/Delete", Access::Admin, Audit::Yes),
    ("/redhare.v1.Reservations/Show", Access::Read, Audit::No),
    ("/redhare.v1.Reservations/Replace", Access::Node, Audit::Yes),
    ("/redhare.v1.Reservations/Enforced", Access::Node, Audit::No),
    ("/redhare.v1.Reservations/Clear", Access::Admin, Audit::Yes),
    ("/redhare.v1.Chunks/GetMap", Access::Read, Audit::No),
    ("/redhare.v1.Chunks/Watch", Access::Read, Audit::No),
    ("/redhare.v1.Chunks/ProposeConfiguration", Access::Node, Audit::No),
    // What is given out fits the caller's role; keys are for nodes alone (`data_path`).
    ("/redhare.v1.DataPath/GetKeys", Access::Node, Audit::No),
    ("/redhare.v1.DataPath/GetPasses", Access::Read, Audit::No),
    ("/redhare.v1.Leases/AcquireWriter", Access::Use, Audit::Yes),
    ("/redhare.v1.Leases/RenewWriter", Access::Use, Audit::No),
    ("/redhare.v1.Leases/AwaitWanted", Access::Use, Audit::No),
    ("/redhare.v1.Leases/ReleaseWriter", Access::Use, Audit::Yes),
    // Who reads a file system holds the generation that it reads.
    ("/redhare.v1.Leases/HoldReader", Access::Read, Audit::No),
    ("/redhare.v1.Leases/ReleaseReader", Access::Read, Audit::No),
    ("/redhare.v1.Leases/Show", Access::Read, Audit::No),
    ("/redhare.v1.Joining/GetRoots", Access::Anyone, Audit::No),
    ("/redhare.v1.Joining/Join", Access::Anyone, Audit::Yes),
    // Of its own certificate, for its own name.
    ("/redhare.v1.Joining/Renew", Access::Node, Audit::Yes),
    ("/redhare.v1.Joining/CreateToken", Access::Admin, Audit::Yes),
    ("/redhare.v1.Joining/ListTokens", Access::Admin, Audit::No),
    ("/redhare.v1.Joining/RevokeToken", Access::Admin, Audit::Yes),
];

/// How a master treats its callers.
#[derive(Debug)]
pub(crate) struct Policy {
    /// The cluster whose certificates are asked for; none if anyone may call anything.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) audit: Option<Arc<AuditLog>>,
    pub(crate) calls: Calls,
    strangers: Mutex<Strangers>,
}

/// Refusals of callers without a certificate that are recorded in a minute.
const STRANGERS_A_MINUTE: u32 = 60;

/// How many of those were recorded.
#[derive(Debug, Default)]
struct Strangers {
    since: Option<Instant>,
    recorded: u32,
    left_out: u64,
}

impl Strangers {
    /// Whether one more is recorded; how many were left out since the last one that was.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let is_over = |since| now.saturating_duration_since(since) >= Duration::from_secs(60);
        if self.since.is_none_or(is_over) {
            (self.since, self.recorded) = (Some(now), 0);
        }
        if self.recorded >= STRANGERS_A_MINUTE {
            self.left_out += 1;
            return None;
        }
        self.recorded += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Policy {
    pub(crate) fn new(cluster: Option<Cluster>, audit: Option<Arc<AuditLog>>) -> Self {
        let calls = Calls::of(METHODS.iter().map(|(path, ..)| *path));
        Self {
            cluster,
            audit,
            calls,
            strangers: Mutex::default(),
        }
    }

    /// Whether the call may be made, and whether it is to be recorded.
    fn admit(&self, path: &str, caller: &Caller) -> Result<Audit, Status> {
        let found = METHODS.iter().find(|(method, ..)| *method == path);
        // What nobody has allowed, nobody may: a method that is missing here is no method.
        let Some(&(_, access, audit)) = found else {
            let method = path.trim_start_matches('/');
            return Err(Status::unimplemented(format!(
                "this master has no method {method}; ask one of the same release"
            )));
        };
        let Some(cluster) = self.cluster else {
            return Ok(audit);
        };
        if access == Access::Anyone && matches!(caller.who, Who::Unnamed) {
            return Ok(audit);
        }
        let identity = holder(caller)?;
        check_holder(identity, cluster)?;
        if access.allows(identity.role) {
            return Ok(audit);
        }
        let method = path.trim_start_matches("/redhare.v1.");
        Err(Status::permission_denied(format!(
            "{method} is not for {} \"{}\": it takes the role {needed}; use credentials of that role (\"redhare ca issue \
             --role {needed}\" makes them)",
            identity.role,
            identity.name,
            needed = access.role()
        )))
    }

    /// A heartbeat of a stream was answered so: it counts, and is recorded, as the call that it stands for.
    pub(crate) fn note_heartbeat(&self, extensions: &Extensions, refused: Option<&Status>) {
        self.calls
            .count_code(HEARTBEAT, refused.map_or(Code::Ok, Status::code));
        let denied = refused.filter(|status| status.code() == Code::PermissionDenied);
        if let (Some(status), Some(caller)) = (denied, extensions.get::<Caller>()) {
            let outcome = Err((status.code(), status.message()));
            self.record(caller, HEARTBEAT, &Object::default(), outcome);
        }
    }

    /// Records a refusal. Of callers that nobody knows no more than so many a minute, so that they fill no disk; the rest are counted.
    fn refuse(&self, caller: &Caller, path: &str, object: &Object, status: &Status) {
        let is_listed = self.is_a_method(path);
        let path = if is_listed {
            path
        } else {
            "(no method of this master)"
        };
        let why = if is_listed { status.message() } else { "" };
        let outcome = Err((status.code(), why));
        if caller.identity().is_some() {
            return self.record(caller, path, object, outcome);
        }
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left_out) = strangers.take(Instant::now()) else {
            return;
        };
        drop(strangers);
        if left_out > 0 {
            let why = format!("{left_out} more refusals of callers without a certificate, before this");
            self.record(caller, path, object, Err((Code::ResourceExhausted, &why)));
        }
        self.record(caller, path, object, outcome);
    }

    fn is_a_method(&self, path: &str) -> bool {
        METHODS.iter().any(|(method, ..)| *method == path)
    }

    fn record(&self, caller: &Caller, path: &str, object: &Object, outcome: Result<(), (Code, &str)>) {
        if let Some(audit) = &self.audit {
            audit.record(&Entry {
                address: caller.address,
                identity: caller.identity(),
                method: path.trim_start_matches("/redhare.v1."),
                object: &object.get(),
                outcome,
            });
        }
    }
}

impl Caller {
    fn identity(&self) -> Option<&Identity> {
        match &self.who {
            Who::Holder(identity) => Some(identity),
            _ => None,
        }
    }
}

fn holder(caller: &Caller) -> Result<&Identity, Status> {
    let how =
        "give --credentials DIR or set REDHARE_CREDENTIALS (\"redhare ca issue\" makes what belongs there)";
    match &caller.who {
        Who::Holder(identity) => Ok(identity),
        Who::Plain | Who::Anyone => Err(Status::unauthenticated(format!(
            "this master speaks TLS and answers nobody without a certificate; {how}"
        ))),
        Who::Unnamed => Err(Status::unauthenticated(format!(
            "no certificate was shown, and this master answers nobody without; {how}"
        ))),
        Who::Strange(why) => Err(Status::unauthenticated(format!(
            "the certificate that was shown is none of a Redhare cluster: {why}; {how}"
        ))),
    }
}

/// The connection may be older than its certificate.
fn check_holder(identity: &Identity, cluster: Cluster) -> Result<(), Status> {
    let Identity { role, name, .. } = identity;
    if identity.cluster != cluster {
        return Err(Status::unauthenticated(format!(
            "the certificate of {role} \"{name}\" is of cluster {}, this is cluster {cluster}; name the masters of its own \
             cluster, or use credentials of this one",
            identity.cluster
        )));
    }
    check_term(identity)
}

fn check_term(identity: &Identity) -> Result<(), Status> {
    if identity.is_valid_now() {
        return Ok(());
    }
    let Identity { role, name, .. } = identity;
    Err(Status::unauthenticated(format!(
        "the certificate of {role} \"{name}\" does not hold now; make it anew with \"redhare ca renew\" (a program \
         that runs takes the new files), or set the clocks"
    )))
}

/// Refuses a stream that has outlived the certificate that it was begun with.
pub(crate) fn check_stream(extensions: &Extensions) -> Result<(), Status> {
    caller_identity(extensions).map_or(Ok(()), check_term)
}

/// Whose certificate the call was made with, if it was with one.
pub(crate) fn caller_identity(extensions: &Extensions) -> Option<&Identity> {
    extensions.get::<Caller>().and_then(Caller::identity)
}

/// Refuses a node that speaks for another one.
pub(crate) fn check_node(extensions: &Extensions, node: &[u8]) -> Result<(), Status> {
    let Some(identity) = caller_identity(extensions) else {
        return Ok(());
    };
    let named = identity.name.parse::<Cluster>().map(Cluster::to_bytes);
    if identity.role != Role::Node || named.is_ok_and(|named| named[..] == *node) {
        return Ok(());
    }
    Err(Status::permission_denied(format!(
        "the certificate is that of node {}, which cannot speak for node {}; make one for that node with \"redhare ca issue \
         --role node --name {1}\"",
        identity.name,
        crate::convert::uuid_text(node)
    )))
}

/// Who calls; none if this master asks nobody who it is.
pub(crate) fn identity(extensions: &Extensions) -> Option<Identity> {
    extensions.get::<Caller>().and_then(Caller::identity).cloned()
}

/// What a call is about, which only the method knows.
#[derive(Clone, Debug, Default)]
struct Object(Arc<Mutex<String>>);

impl Object {
    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Says what a call is about, for the audit log. Secrets do not belong there.
pub(crate) fn about(extensions: &Extensions, what: impl FnOnce() -> String) {
    if let Some(object) = extensions.get::<Object>() {
        *object.0.lock().unwrap_or_else(PoisonError::into_inner) = what();
    }
}

/// A service behind the table.
#[derive(Clone, Debug)]
pub(crate) struct Guarded<S> {
    inner: S,
    policy: Arc<Policy>,
    whose: Whose,
}

impl<S> Guarded<S> {
    pub(crate) fn new(inner: S, policy: &Arc<Policy>, whose: &Whose) -> Self {
        Self {
            inner,
            policy: policy.clone(),
            whose: whose.clone(),
        }
    }
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Response<Body>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that is ready goes with the call.
        let fresh = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, fresh);
        let (policy, whose) = (self.policy.clone(), self.whose.clone());
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let answer = answer(inner, &policy, &whose, &path, request).await?;
            policy.calls.count(&path, answer.headers());
            Ok(answer)
        })
    }
}

/// A call that is under way. It is recorded with an unknown outcome if it is dropped before its answer.
struct Unanswered<'a> {
    policy: &'a Policy,
    caller: &'a Caller,
    path: &'a str,
    object: &'a Object,
    is_recorded: bool,
}

impl Unanswered<'_> {
    fn answered(mut self) {
        self.is_recorded = false;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.is_recorded {
            let why = "the caller went away before the answer: it is not known whether it was done, or begun";
            self.policy
                .record(self.caller, self.path, self.object, Err((Code::Cancelled, why)));
        }
    }
}

/// The service's answer, or a refusal.
async fn answer<S: Service<Request<Body>, Response = Response<Body>>>(
    mut inner: S,
    policy: &Policy,
    whose: &Whose,
    path: &str,
    mut request: Request<Body>,
) -> Result<Response<Body>, S::Error> {
    let Some(caller) = request.extensions().get::<Caller>().cloned() else {
        return Ok(Status::internal("a connection without a caller; report this").into_http());
    };
    let object = Object::default();
    let audit = match policy.admit(path, &caller) {
        Ok(audit) => audit,
        Err(status) => {
            policy.refuse(&caller, path, &object, &status);
            return Ok(status.into_http());
        }
    };
    request.extensions_mut().insert(object.clone());
    if let Err(status) = whose.check(request.headers()).await {
        let is_foreign = status.metadata().contains_key(proto::client::CLUSTER);
        if is_foreign {
            policy.refuse(&caller, path, &object, &status);
        }
        return Ok(status.into_http());
    }
    // Who goes away before the answer takes the call along, but not what it has done.
    let unanswered = Unanswered {
        policy,
        caller: &caller,
        path,
        object: &object,
        is_recorded: audit == Audit::Yes,
    };
    let answer = inner.call(request).await?;
    unanswered.answered();
    // A refusal stands in the headers; what succeeds ends with its trailers.
    let status = Status::from_header_map(answer.headers());
    let refused = status.as_ref().filter(|status| status.code() != Code::Ok);
    let is_denied = refused.is_some_and(|status| status.code() == Code::PermissionDenied);
    let headers = [proto::client::LEADER, proto::client::NOT_YET];
    let was_sent_on = headers
        .iter()
        .any(|header| answer.headers().contains_key(*header));
    if (audit == Audit::Yes && !was_sent_on) || is_denied {
        let outcome = refused.map_or(Ok(()), |status| Err((status.code(), status.message())));
        policy.record(&caller, path, &object, outcome);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_fill_no_audit_log() {
        let (mut strangers, begin) = (Strangers::default(), Instant::now());
        let taken = (0..1000)
            .filter_map(|_| strangers.take(begin))
            .collect::<Vec<_>>();
        assert_eq!(taken, vec![0; STRANGERS_A_MINUTE as usize]);
        let later = begin + Duration::from_secs(61);
        assert_eq!(strangers.take(later), Some(1000 - u64::from(STRANGERS_A_MINUTE)));
        assert_eq!(strangers.take(later), Some(0));
    }

    const CLUSTER: [u8; 16] = [7; 16];

    fn caller(role: Role) -> Caller {
        let identity = Identity {
            role,
            name: "07070707-0707-0707-0707-070707070701".to_owned(),
            cluster: Cluster::from_bytes(CLUSTER).unwrap(),
            not_before: 0,
            not_after: i64::MAX,
            serial: String::new(),
            addresses: Vec::new(),
        };
        Caller {
            address: "192.0.2.1:1".parse().unwrap(),
            who: Who::Holder(Arc::new(identity)),
        }
    }

    fn policy() -> Policy {
        Policy::new(Cluster::from_bytes(CLUSTER), None)
    }

    /// The methods that the interface's own text has.
    fn declared() -> Vec<String> {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/redhare/v1");
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let mut service = "";
            for line in text.lines().map(str::trim) {
                if let Some(rest) = line.strip_prefix("service ") {
                    service = rest.trim_end_matches(['{', ' ']);
                }
                if let Some((method, _)) = line.strip_prefix("rpc ").and_then(|rest| rest.split_once('(')) {
                    found.push(format!("/redhare.v1.{service}/{method}"));
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn the_table_has_every_method_once_and_no_other() {
        let mut listed: Vec<String> = METHODS.iter().map(|(path, ..)| (*path).to_owned()).collect();
        listed.sort();
        let declared = declared();
        assert!(declared.len() > 20, "{declared:?}");
        assert_eq!(listed, declared);
    }

    #[test]
    fn each_role_may_do_what_it_is_for_and_nothing_else() {
        let policy = policy();
        let may = |role: Role, method: &str| {
            let admitted = policy.admit(&format!("/redhare.v1.{method}"), &caller(role));
            admitted.is_ok()
        };
        for (method, allowed) in [
            ("Cluster/GetStatus", [true, true, true, true]),
            ("Chunks/Watch", [true, true, true, true]),
            ("Leases/HoldReader", [true, true, true, true]),
            ("Leases/AcquireWriter", [true, false, true, false]),
            ("Nodes/Register", [true, true, false, false]),
            ("Nodes/Heartbeat", [true, true, false, false]),
            ("Nodes/Heartbeats", [true, true, false, false]),
            ("DataPath/GetKeys", [true, true, false, false]),
            ("DataPath/GetPasses", [true, true, true, true]),
            ("Chunks/ProposeConfiguration", [true, true, false, false]),
            ("Reservations/Show", [true, true, true, true]),
            ("Reservations/Replace", [true, true, false, false]),
            ("Reservations/Clear", [true, false, false, false]),
            ("Volumes/Create", [true, false, false, false]),
            ("Volumes/Delete", [true, false, false, false]),
            ("Nodes/Drain", [true, false, false, false]),
            ("Nodes/Remove", [true, false, false, false]),
            ("Joining/GetRoots", [true, true, true, true]),
            ("Joining/Join", [true, true, true, true]),
            ("Joining/Renew", [true, true, false, false]),
            ("Joining/CreateToken", [true, false, false, false]),
            ("Joining/ListTokens", [true, false, false, false]),
            ("Joining/RevokeToken", [true, false, false, false]),
        ] {
            let roles = [Role::Admin, Role::Node, Role::Client, Role::ReadOnly];
            assert_eq!(roles.map(|role| may(role, method)), allowed, "{method}");
            assert!(!may(Role::Master, method), "{method}");
        }
        let refused = policy
            .admit("/redhare.v1.Volumes/Delete", &caller(Role::Client))
            .unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("takes the role admin"), "{refused}");
        let unknown = policy
            .admit("/redhare.v1.Volumes/Burn", &caller(Role::Admin))
            .unwrap_err();
        assert_eq!(unknown.code(), Code::Unimplemented);
    }

    #[test]
    fn who_does_not_prove_to_be_somebody_is_refused_everything_but_to_join() {
        let policy = policy();
        let mut open_to_all = Vec::new();
        for (path, ..) in METHODS {
            for (who, why) in [
                (Who::Plain, "speaks TLS"),
                (Who::Unnamed, "no certificate was shown"),
                (Who::Strange("it is odd".into()), "it is odd"),
            ] {
                let caller = Caller {
                    who,
                    ..caller(Role::Admin)
                };
                match policy.admit(path, &caller) {
                    Ok(_) => open_to_all.push((*path, why)),
                    Err(refused) => {
                        assert_eq!(refused.code(), Code::Unauthenticated);
                        assert!(refused.message().contains(why), "{refused}");
                    }
                }
            }
        }
        // Over TLS, so that a token is not read on the way, and without a certificate; nothing else.
        let none = "no certificate was shown";
        assert_eq!(
            open_to_all,
            [
                ("/redhare.v1.Joining/GetRoots", none),
                ("/redhare.v1.Joining/Join", none)
            ]
        );
        let change = |change: fn(&mut Identity)| {
            let mut caller = caller(Role::Admin);
            let Who::Holder(identity) = &mut caller.who else {
                unreachable!()
            };
            change(Arc::make_mut(identity));
            let refused = policy
                .admit("/redhare.v1.Cluster/GetStatus", &caller)
                .unwrap_err();
            assert_eq!(refused.code(), Code::Unauthenticated);
            refused.message().to_owned()
        };
        let said = change(|identity| identity.not_after = 1);
        assert!(said.contains("does not hold now"), "{said}");
        let said = change(|identity| identity.cluster = Cluster::from_bytes([8; 16]).unwrap());
        assert!(said.contains("is of cluster 08080808-"), "{said}");
        // Without credentials a master asks nobody, as it always was.
        let open = Policy::new(None, None);
        let anyone = Caller {
            who: Who::Anyone,
            ..caller(Role::Admin)
        };
        assert!(METHODS.iter().all(|(path, ..)| open.admit(path, &anyone).is_ok()));
    }

    #[test]
    fn a_node_speaks_for_itself_alone() {
        let check = |role: Role, node: [u8; 16]| {
            let mut extensions = Extensions::new();
            extensions.insert(caller(role));
            check_node(&extensions, &node)
        };
        let mut own = [7; 16];
        own[15] = 1;
        assert!(check(Role::Node, own).is_ok());
        let refused = check(Role::Node, [7; 16]).unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(
            refused.message().contains("cannot speak for node 07070707-"),
            "{refused}"
        );
        assert!(check(Role::Admin, [7; 16]).is_ok());
    }
}
