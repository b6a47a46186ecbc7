//! A host: our initiator on a reactor of its own.

use std::net::SocketAddr;
use std::rc::Rc;

use bdev::{ChannelExt, IoError};
use fabrics::initiator::{ConnectError, ConnectOptions, Controller, NamespaceChannel};
use foundation::Lba;
use reactor::{BufferPool, Config};

use super::daemon::NQN;

pub(crate) const HOST: &str = "nqn.2026-11.io.redhare:host";
pub(crate) const BLOCK_BYTES: usize = 4096;

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    reactor::run(&Config::default(), future).expect("this machine can run a reactor")
}

pub(crate) async fn connect(address: SocketAddr) -> Result<Rc<Controller>, ConnectError> {
    let (subsystem, host) = (NQN.parse().unwrap(), HOST.parse().unwrap());
    Controller::connect(ConnectOptions::new(address, subsystem, host, [7; 16])).await
}

/// Connects to a namespace, for as long as the controller is kept.
pub(crate) async fn open(address: SocketAddr, nsid: u32) -> (Rc<Controller>, NamespaceChannel) {
    let controller = connect(address).await.unwrap();
    let channel = controller.open_namespace(nsid).await.unwrap();
    (controller, channel)
}

/// Writes a block of these bytes.
pub(crate) async fn write(channel: &NamespaceChannel, lba: u64, byte: u8) -> Result<(), IoError> {
    let mut buffer = BufferPool::current().try_allocate(BLOCK_BYTES).unwrap();
    buffer.fill(byte);
    channel.write(Lba(lba), buffer.freeze()).await
}

/// Reads a block.
pub(crate) async fn read(channel: &NamespaceChannel, lba: u64) -> Result<Vec<u8>, IoError> {
    let buffer = BufferPool::current().try_allocate(BLOCK_BYTES).unwrap();
    let (status, buffer) = channel.read(Lba(lba), buffer).await;
    status.map(|()| buffer.to_vec())
}
