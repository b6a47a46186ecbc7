//! Join tokens in the store: who takes a use of one, how often, and until when; also when masters decide at once.

use std::cell::RefCell;
use std::time::Duration;

use control::{
    Committed, ControlError, Controller, CreateJoinToken, Entry, ErrorKind, JoinRole, JoinToken, JoinTokenId,
    MemoryStore, MetadataStore, NodeId, Registration, Settings, StoreError, Transaction, Versioned,
};
use foundation::{Instant, Random};

const ID: JoinTokenId = JoinTokenId([9; 8]);
const SECRET: [u8; 32] = [3; 32];
const NOW: u64 = 1_700_000_000;

fn open<S: MetadataStore>(store: S) -> Controller<S> {
    Controller::open(store, Settings::default(), 1, Instant::from_nanos(1)).unwrap()
}

fn wanted(uses: u32) -> CreateJoinToken {
    CreateJoinToken {
        id: ID,
        secret_sha256: SECRET,
        role: JoinRole::Node,
        name: String::new(),
        uses,
        life: Duration::from_secs(100),
        certificate_term: Duration::from_secs(86_400),
        creator: "alice".to_owned(),
    }
}

fn refused(result: Result<JoinToken, ControlError>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    error.to_string()
}

#[test]
fn a_token_serves_as_often_and_as_long_as_it_is_for() {
    let store = MemoryStore::new();
    let mut control = open(&store);
    let made = control.create_join_token(&wanted(2), NOW).unwrap();
    assert_eq!(control.join_tokens().unwrap(), vec![made.clone()]);
    assert_eq!((made.uses_left(), made.expires_unix_s), (2, NOW + 100));
    let wrong = refused(control.join(ID, &[4; 32], &[1; 32], "", NOW));
    assert!(
        wrong.contains("there is no join token 0909090909090909 with that secret"),
        "{wrong}"
    );
    let other = refused(control.join(JoinTokenId([8; 8]), &SECRET, &[1; 32], "", NOW));
    assert!(
        other.contains("there is no join token 0808080808080808"),
        "{other}"
    );
    let named = refused(control.join(ID, &SECRET, &[1; 32], "somebody", NOW));
    assert!(
        named.contains("is not for \"somebody\"; ask for one that is"),
        "{named}"
    );
    assert_eq!(
        control.join_tokens().unwrap()[0].uses_left(),
        2,
        "no refusal takes a use"
    );
    let joined = control.join(ID, &SECRET, &[1; 32], "", NOW + 99).unwrap();
    assert_eq!((joined.uses_left(), joined.joined), (1, vec![[1; 32]]));
    // Whose answer was lost asks again, and takes no other use.
    assert_eq!(
        control.join(ID, &SECRET, &[1; 32], "", NOW).unwrap().uses_left(),
        1
    );
    assert_eq!(
        control.join(ID, &SECRET, &[2; 32], "", NOW).unwrap().uses_left(),
        0
    );
    let over = refused(control.join(ID, &SECRET, &[3; 32], "", NOW));
    assert!(
        over.contains("was for 2 uses, and all of them are taken"),
        "{over}"
    );
    let late = refused(control.join(ID, &SECRET, &[1; 32], "", NOW + 107));
    assert!(late.contains("expired 7 s ago"), "{late}");
    control.revoke_join_token(ID).unwrap();
    assert!(matches!(
        control.revoke_join_token(ID),
        Err(ControlError::NoSuchJoinToken { .. })
    ));
    refused(control.join(ID, &SECRET, &[1; 32], "", NOW));
    // What has been over for long is forgotten when the next one is made.
    control.create_join_token(&wanted(1), NOW).unwrap();
    let next = CreateJoinToken {
        id: JoinTokenId([1; 8]),
        ..wanted(1)
    };
    control.create_join_token(&next, NOW + 8 * 86_400).unwrap();
    let left = control.join_tokens().unwrap();
    assert_eq!(left.iter().map(|token| token.id).collect::<Vec<_>>(), [next.id]);
}

#[test]
fn what_no_token_can_be_is_refused() {
    let store = MemoryStore::new();
    let mut control = open(&store);
    let mut bad = |change: &dyn Fn(&mut CreateJoinToken), why: &str| {
        let mut create = wanted(1);
        change(&mut create);
        let error = control.create_join_token(&create, NOW).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(why), "{error}");
    };
    bad(&|create| create.uses = 0, "uses is 0; use 1 to 1000");
    bad(&|create| create.uses = 1001, "uses is 1001; use 1 to 1000");
    bad(&|create| create.life = Duration::ZERO, "expires is 0 s");
    bad(
        &|create| create.life = Duration::from_secs(400 * 86_400),
        "use 1 s to 366 days",
    );
    bad(
        &|create| create.certificate_term = Duration::ZERO,
        "certificate_lasts is 0 s",
    );
    bad(
        &|create| create.name = "n1".to_owned(),
        "is \"n1\", which is no node's",
    );
    bad(
        &|create| create.name = "a b".to_owned(),
        "characters that do not belong",
    );
    bad(
        &|create| {
            create.name = "07070707-0707-0707-0707-070707070701".to_owned();
            create.uses = 2;
        },
        "uses is 2 for the name of one node",
    );
    // The same id twice.
    control.create_join_token(&wanted(1), NOW).unwrap();
    assert!(matches!(
        control.create_join_token(&wanted(1), NOW),
        Err(ControlError::Contended { .. })
    ));
}

#[test]
fn a_node_that_was_removed_does_not_join_by_its_name() {
    let store = MemoryStore::new();
    let mut control = open(&store);
    let name = "07070707-0707-0707-0707-070707070701";
    let node = NodeId(name.parse().unwrap());
    let named = CreateJoinToken {
        name: name.to_owned(),
        ..wanted(1)
    };
    control.create_join_token(&named, NOW).unwrap();
    let registration = Registration {
        cluster: None,
        node,
        peer_address: "192.0.2.1:4420".to_owned(),
        rack: None,
        incarnation: None,
        ended_through: control::Incarnation(0),
        disks: Vec::new(),
    };
    let now = Instant::from_nanos(1);
    control.register(&registration, now).unwrap();
    control.check_not_removed(node).unwrap();
    let later = Instant::from_nanos(3600 * 1_000_000_000);
    control.remove_node(node, later).unwrap();
    let error = control.join(ID, &SECRET, &[1; 32], name, NOW).unwrap_err();
    assert!(matches!(error, ControlError::NodeRemoved { .. }), "{error}");
    assert_eq!(control.join_tokens().unwrap()[0].uses_left(), 1);
}

#[test]
fn tokens_are_carried_from_one_store_to_another() {
    let (from, to) = (MemoryStore::new(), MemoryStore::new());
    let mut control = open(&from);
    control.create_join_token(&wanted(2), NOW).unwrap();
    let joined = control.join(ID, &SECRET, &[1; 32], "", NOW).unwrap();
    let image = control::transfer::export(&from).unwrap();
    let image = control::transfer::Image::decode(&image.encode()).unwrap();
    control::transfer::import(&to, &image, |_| {}).unwrap();
    assert_eq!(open(&to).join_tokens().unwrap(), [joined]);
}

/// What another master does to the store.
type Act<'a> = Box<dyn FnOnce(&MemoryStore) + 'a>;

/// A store on which another master acts right before each commit of this one, as long as it has something to do.
struct Overtaken<'a> {
    store: &'a MemoryStore,
    others: RefCell<Vec<Act<'a>>>,
}

impl MetadataStore for Overtaken<'_> {
    fn revision(&self) -> Result<u64, StoreError> {
        self.store.revision()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        self.store.get(key)
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.store.range(first, end, limit)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        let other = self.others.borrow_mut().pop();
        if let Some(other) = other {
            other(self.store);
        }
        self.store.commit(transaction)
    }

    fn operations_max(&self) -> usize {
        self.store.operations_max()
    }
}

#[test]
fn of_two_who_race_for_the_last_use_one_gets_it() {
    let store = MemoryStore::new();
    open(&store).create_join_token(&wanted(1), NOW).unwrap();
    let overtaken = Overtaken {
        store: &store,
        others: RefCell::default(),
    };
    let mut slow = open(&overtaken);
    let quick = |store: &MemoryStore| {
        open(store).join(ID, &SECRET, &[2; 32], "", NOW).unwrap();
    };
    overtaken.others.borrow_mut().push(Box::new(quick));
    let said = refused(slow.join(ID, &SECRET, &[1; 32], "", NOW));
    assert!(said.contains("all of them are taken"), "{said}");
    assert_eq!(open(&store).join_tokens().unwrap()[0].joined, [[2; 32]]);
    // One that is revoked meanwhile serves nobody, either.
    let revoke = |store: &MemoryStore| open(store).revoke_join_token(ID).unwrap();
    open(&store).revoke_join_token(ID).unwrap();
    open(&store).create_join_token(&wanted(1), NOW).unwrap();
    overtaken.others.borrow_mut().push(Box::new(revoke));
    let said = refused(slow.join(ID, &SECRET, &[1; 32], "", NOW));
    assert!(said.contains("it was revoked"), "{said}");
}

/// Masters that overtake each other, by seed: no more join than a token is for, and as many.
#[test]
fn however_masters_overtake_each_other_a_token_serves_as_often_as_it_is_for() {
    for seed in 0..200 {
        let mut random = Random::from_seed(seed);
        let store = MemoryStore::new();
        let uses = 1 + random.below(4) as u32;
        open(&store).create_join_token(&wanted(uses), NOW).unwrap();
        let joined = RefCell::new(Vec::new());
        let overtaken = Overtaken {
            store: &store,
            others: RefCell::default(),
        };
        let mut slow = open(&overtaken);
        for caller in 0..8u8 {
            for other in 0..random.below(3) as u8 {
                let key = [100 + caller * 10 + other; 32];
                let joined = &joined;
                overtaken
                    .others
                    .borrow_mut()
                    .push(Box::new(move |store: &MemoryStore| {
                        if open(store).join(ID, &SECRET, &key, "", NOW).is_ok() {
                            joined.borrow_mut().push(key);
                        }
                    }));
            }
            let key = [caller; 32];
            if slow.join(ID, &SECRET, &key, "", NOW).is_ok() {
                joined.borrow_mut().push(key);
            }
        }
        assert_eq!(joined.borrow().len(), uses as usize, "seed {seed}");
        let mut recorded = open(&store).join_tokens().unwrap()[0].joined.clone();
        recorded.sort_unstable();
        joined.borrow_mut().sort_unstable();
        assert_eq!(recorded, *joined.borrow(), "seed {seed}");
    }
}
