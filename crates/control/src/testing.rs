//! For simulations, here and in crates that simulate more than the masters: a model of etcd, and the mistakes that can be planted.
//! There with the feature `testing` and in this crate's own tests only; no promise of this crate covers it.

mod etcd;

pub use crate::planted::Bug;
pub use etcd::{Etcd, EtcdElection, Handle, Lost};
