//! The table: for each call what cannot be meant, with the refusal that it gets, and what is legitimate though it says nothing.

mod nodes;
mod others;
mod volumes;

use std::fmt::Debug;

use master::v1;
use prost::Message;
use tonic::Code;

/// What the cluster has that is asked; see [`super::given`].
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub(super) cluster: Vec<u8>,
    /// The first chunk of "data", which is volume 1.
    pub(super) chunk: v1::Chunk,
}

/// How a call has to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    /// With this code, and a text that has this part.
    Refused(Code, &'static str),
    /// Well, since.
    Done(&'static str),
}

/// One message to one call.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Service and method.
    pub(super) call: &'static str,
    pub(super) message: Vec<u8>,
    /// The message for people.
    pub(super) what: String,
    pub(super) expected: Expected,
}

/// The table as it grows.
#[derive(Debug, Default)]
struct Rows(Vec<Row>);

impl Rows {
    fn add(&mut self, call: &'static str, message: &(impl Message + Debug), expected: Expected) {
        let mut what = format!("{message:?}");
        if let Some((end, _)) = what.char_indices().nth(300) {
            what.truncate(end);
        }
        self.0.push(Row {
            call,
            message: message.encode_to_vec(),
            what,
            expected,
        });
    }

    /// To be refused with a text that has this part.
    fn no(&mut self, call: &'static str, message: &(impl Message + Debug), code: Code, part: &'static str) {
        self.add(call, message, Expected::Refused(code, part));
    }

    fn invalid(&mut self, call: &'static str, message: &(impl Message + Debug), part: &'static str) {
        self.no(call, message, Code::InvalidArgument, part);
    }

    fn absent(&mut self, call: &'static str, message: &(impl Message + Debug), part: &'static str) {
        self.no(call, message, Code::NotFound, part);
    }

    fn unmet(&mut self, call: &'static str, message: &(impl Message + Debug), part: &'static str) {
        self.no(call, message, Code::FailedPrecondition, part);
    }

    /// Legitimate, and changes nothing.
    fn yes(&mut self, call: &'static str, message: &(impl Message + Debug), why: &'static str) {
        self.add(call, message, Expected::Done(why));
    }
}

/// All of it.
pub(super) fn all(given: &Given) -> Vec<Row> {
    let mut rows = Rows::default();
    nodes::add(&mut rows, given);
    volumes::add(&mut rows);
    others::add(&mut rows, given);
    rows.0
}

/// Where 16 bytes are meant.
fn short() -> Vec<u8> {
    vec![7; 3]
}

/// A node, disk or session that nobody knows.
fn nobody() -> Vec<u8> {
    crate::fake::uuid(77)
}

/// One of many disks or hosts.
fn numbered(number: u64) -> Vec<u8> {
    (9 << 64 | u128::from(number)).to_be_bytes().to_vec()
}

fn data() -> String {
    "data".to_owned()
}

fn no_such() -> String {
    "no-such".to_owned()
}

/// Names that no volume, snapshot or rack can have, with what is said of each.
const ODD_NAMES: [(&str, &str); 7] = [
    ("", "is \"\""),
    ("a/b", "is \"a/b\""),
    ("../a", "is \"../a\""),
    ("-a", "is \"-a\""),
    ("a\u{1b}[2J\n", "is \"a\\u{1b}[2J\\n\""),
    ("a b", "is \"a b\""),
    ("h\u{e4}se", "is \"h\u{e4}se\""),
];

/// Longer than any name.
fn long_name() -> String {
    "x".repeat(5000)
}
