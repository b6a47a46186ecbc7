//! A volume that two nodes of `redhare up` export: a host with a path to each writes and reads while their targets are killed,
//! and every byte is what it wrote, by either portal and by the native client.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::support::load::{self, Load, Way};
use crate::support::{Cluster, Place, REDHARE, free_ports, kill, wait_until};
use bdev::{BlockDevice, Channel, ChannelExt, Data, IoError, Operation};
use fabrics::initiator::{ConnectOptions, Controller, NamespaceChannel, RemoteDevice, RemoteOptions};
use foundation::{BlockCount, Lba};
use protocols::nvme::log::{LogPage, ReservationNotification};
use protocols::nvme::reservation::{
    AcquireAction, AcquireKeys, AskReservationReport, ChangePersistence, RegisterAction, RegisterKeys,
    ReleaseAction, ReleaseKey, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport, ReservationType,
};
use protocols::nvme::{Command, Status};
use reactor::BufferPool;
use rustix::process::{Pid, Signal, kill_process};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";

/// Where the portals are, and under which name.
fn export(cluster: &Cluster, arguments: &[&str]) -> (Vec<SocketAddr>, String) {
    let said = cluster.json(&[&["volume", "export"][..], arguments].concat());
    let portals = said["portals"].as_array().unwrap();
    let address = |portal: &serde_json::Value| portal["address"].as_str().unwrap().parse().unwrap();
    let addresses = portals.iter().map(address).collect();
    (addresses, said["nqn"].as_str().unwrap().to_owned())
}

/// The node whose target listens there.
fn node_at(cluster: &Cluster, address: SocketAddr) -> u32 {
    let is_it = |number: &u32| cluster.node(*number)["address"] == address.to_string();
    (1..=3).find(is_it).expect("a portal is a node")
}

fn options(address: SocketAddr, nqn: &str, host: &str) -> RemoteOptions {
    let connect = ConnectOptions::new(address, nqn.parse().unwrap(), host.parse().unwrap(), [9; 16]);
    RemoteOptions::new(connect, 1)
}

/// Whether a host of this name may connect.
fn connects(address: SocketAddr, nqn: &str, host: &str) -> bool {
    let options = options(address, nqn, host);
    reactor::run(&reactor::Config::default(), async {
        RemoteDevice::connect(options).await.is_ok()
    })
    .unwrap()
}

#[test]
fn a_host_survives_the_death_of_either_portal() {
    let place = Place::in_memory("portals");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "disk", "--size", "512MiB"]);
    let (portals, nqn) = export(&cluster, &["disk"]);
    assert_eq!(portals.len(), 2);
    let shown = cluster.json(&["volume", "show", "disk"]);
    assert_eq!(shown["export"]["nqn"], nqn.as_str());
    cluster.wait(&["status"], |said| said.contains("exported by 2 nodes"));

    let host = Load::through_portals(&portals, &nqn);
    host.wait_for(300);
    for address in &portals {
        let node = node_at(&cluster, *address);
        let life = cluster.incarnation(node);
        kill(&cluster.target_lock(node));
        host.wait_for(300);
        cluster.wait_for_life_after(node, life);
        cluster.wait(&["status"], |said| said.contains("all copies in sync"));
        host.wait_for(300);
    }
    let (contents, slowest) = host.finish();
    println!("the slowest request took {slowest:?}");
    load::check(&cluster.address(), "disk", &contents);
    for address in portals {
        let (addresses, nqn) = (vec![address], nqn.clone());
        load::check_by(&Way::Portals { addresses, nqn }, &contents);
    }
    cluster.end();
}

#[test]
fn what_a_host_discards_comes_back_to_the_nodes() {
    const MIB: u64 = 1 << 20;
    let place = Place::in_memory("portal-discards");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "thin", "--size", "512MiB"]);
    let (portals, nqn) = export(&cluster, &["thin", "--host", HOST]);
    wait_until("the portal serves", || connects(portals[0], &nqn, HOST));
    let used = |number: u32| cluster.node(number)["used_bytes"].as_u64().unwrap();
    let before: Vec<u64> = (1..=3).map(used).collect();
    let by_host = |discarded: bool| {
        let (options, length) = (options(portals[0], &nqn, HOST), MIB as usize);
        reactor::run(&reactor::Config::default(), async move {
            let device = RemoteDevice::connect(options).await.unwrap();
            let channel = device.open_channel().unwrap();
            for at in 0..64 {
                let mut buffer = reactor::BufferPool::current().allocate(length).await.unwrap();
                let lba = Lba(at * MIB / 4096);
                if !discarded {
                    buffer.fill(1 + at as u8);
                    channel.write(lba, buffer.freeze()).await.unwrap();
                    continue;
                }
                // All but the first and the last MiB.
                let (status, bytes) = channel.read(lba, buffer).await;
                status.unwrap();
                let kept = if [0, 63].contains(&at) { 1 + at as u8 } else { 0 };
                assert!(bytes.iter().all(|byte| *byte == kept), "MiB {at}");
            }
            channel.flush().await.unwrap();
        })
        .unwrap();
    };
    by_host(false);
    for node in 1..=3 {
        let grown = before[node as usize - 1] + 60 * MIB;
        wait_until("the masters count what was written", || used(node) >= grown);
    }
    let discarding = options(portals[0], &nqn, HOST);
    reactor::run(&reactor::Config::default(), async move {
        let device = RemoteDevice::connect(discarding).await.unwrap();
        let channel = device.open_channel().unwrap();
        let (first, blocks) = (Lba(MIB / 4096), BlockCount(62 * MIB / 4096));
        let discarded = channel
            .execute(Operation::Deallocate, first, blocks, Data::None, None)
            .await;
        discarded.status.unwrap();
        channel.flush().await.unwrap();
    })
    .unwrap();
    by_host(true);
    for node in 1..=3 {
        // Of each of two chunks the clusters at both ends may stay.
        let left = before[node as usize - 1] + 12 * MIB;
        wait_until("the masters count what came back", || used(node) <= left);
    }
    cluster.end();
}

#[test]
fn only_who_may_sees_a_volume_and_a_leased_one_takes_no_writes() {
    let place = Place::in_memory("portal-hosts");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "files", "--size", "256MiB"]);
    let (portals, nqn) = export(&cluster, &["files", "--portals", "1", "--host", HOST]);
    let address = portals[0];
    wait_until("the portal serves", || connects(address, &nqn, HOST));
    assert!(!connects(address, &nqn, "nqn.2014-08.org.example:somebody"));
    let write = || {
        let options = options(address, &nqn, HOST);
        reactor::run(&reactor::Config::default(), async {
            let device = RemoteDevice::connect(options).await.unwrap();
            let channel = device.open_channel().unwrap();
            let mut buffer = reactor::BufferPool::current().allocate(4096).await.unwrap();
            buffer.fill(1);
            channel.write(Lba(1000), buffer.freeze()).await
        })
        .unwrap()
    };
    assert_eq!(write(), Ok(()));
    // A file system's writer takes the volume: from then on it takes no writes without the lease.
    cluster.succeed(&["fs", "format", "files", "--force"]);
    assert_eq!(write(), Err(IoError::Fenced));

    let wrong = cluster.run(&["volume", "export", "files", "--on", "nobody"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("no node is called \"nobody\""));
    // Its hosts' disk is not deleted by a slip.
    let refused = std::process::Command::new(REDHARE)
        .args(["volume", "delete", "files"])
        .env("REDHARE_CLUSTER", cluster.address())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("is exported by 1 nodes") && said.contains("--yes"),
        "{said}"
    );
    cluster.succeed(&["volume", "unexport", "files"]);
    wait_until("the portal serves no more", || !connects(address, &nqn, HOST));
    assert!(cluster.json(&["volume", "show", "files"])["export"].is_null());
    cluster.succeed(&["volume", "delete", "files"]);
    cluster.succeed(&["volume", "create", "other", "--size", "256MiB"]);
    cluster.succeed(&["volume", "export", "other"]);
    cluster.succeed(&["volume", "delete", "other", "--yes"]);
    cluster.end();
}

/// A host's association with one portal.
struct Reserving {
    number: u8,
    controller: Rc<Controller>,
    namespace: NamespaceChannel,
}

impl Reserving {
    async fn connect(number: u8, address: SocketAddr, nqn: &str) -> Self {
        let connected = Self::try_connect(number, address, nqn).await;
        connected.expect("the portal serves")
    }

    async fn try_connect(number: u8, address: SocketAddr, nqn: &str) -> Option<Self> {
        let host = format!("nqn.2014-08.org.example:host-{number}").parse().unwrap();
        let options = ConnectOptions {
            keep_alive: Duration::from_secs(60),
            ..ConnectOptions::new(address, nqn.parse().unwrap(), host, [number; 16])
        };
        let controller = Controller::connect(options).await.ok()?;
        let namespace = controller.open_namespace(1).await.ok()?;
        Some(Self {
            number,
            controller,
            namespace,
        })
    }

    fn key(&self) -> u64 {
        0x1000 + u64::from(self.number)
    }

    async fn status(&self, command: Command, data: Data) -> Status {
        // What is of the path, a host makes again.
        for _ in 0..40 {
            let sent = match &data {
                Data::From(buffer) => Data::From(buffer.clone()),
                _ => Data::None,
            };
            let status = self.namespace.queue().execute(command, sent).await.status();
            if !status.is_path_related() {
                return status;
            }
            reactor::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the path does not come back");
    }

    async fn register(&self, action: RegisterAction) -> Status {
        let register = ReservationRegister {
            nsid: 1,
            action: action.code(),
            ignore_existing_key: false,
            persistence: ChangePersistence::Keep.code(),
        };
        let (current, new) = match action {
            RegisterAction::Unregister => (self.key(), 0),
            _ => (0, self.key()),
        };
        self.status(
            register.to_command(),
            given(&RegisterKeys { current, new }.encode()),
        )
        .await
    }

    async fn acquire(&self, action: AcquireAction, kind: ReservationType, preempt: u64) -> Status {
        let acquire = ReservationAcquire {
            nsid: 1,
            action: action.code(),
            ignore_existing_key: false,
            kind: kind.code(),
        };
        let current = self.key();
        self.status(
            acquire.to_command(),
            given(&AcquireKeys { current, preempt }.encode()),
        )
        .await
    }

    async fn release(&self, kind: ReservationType) -> Status {
        let release = ReservationRelease {
            nsid: 1,
            action: ReleaseAction::Release.code(),
            ignore_existing_key: false,
            kind: kind.code(),
        };
        let current = self.key();
        self.status(release.to_command(), given(&ReleaseKey { current }.encode()))
            .await
    }

    async fn report(&self) -> ReservationReport {
        let ask = AskReservationReport {
            nsid: 1,
            length_dwords: 1024,
            extended: true,
        };
        let room = Data::Into(BufferPool::current().try_allocate(4096).unwrap());
        let result = self.namespace.queue().execute(ask.to_command(), room).await;
        assert_eq!(result.status(), Status::SUCCESS);
        ReservationReport::decode(&result.data.into_read(), true).unwrap()
    }

    async fn write(&self, lba: u64) -> Status {
        let command = Command::write(1, Lba(lba), BlockCount(1));
        self.status(command, given(&[self.number; 4096])).await
    }

    async fn read(&self, lba: u64) -> Status {
        let command = Command::read(1, Lba(lba), BlockCount(1));
        let room = Data::Into(BufferPool::current().try_allocate(4096).unwrap());
        self.namespace.queue().execute(command, room).await.status()
    }

    async fn next_notice(&self) -> ReservationNotification {
        let length = ReservationNotification::BYTES;
        let page = self
            .controller
            .log_page(LogPage::ReservationNotification, 0, length)
            .await;
        ReservationNotification::decode(&page.unwrap()).unwrap()
    }
}

fn given(bytes: &[u8]) -> Data {
    let mut buffer = BufferPool::current().try_allocate(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    Data::From(buffer.freeze())
}

#[test]
fn hosts_reserve_a_volume_by_any_of_its_portals() {
    use ReservationType::{ExclusiveAccess, WriteExclusive, WriteExclusiveRegistrants};
    const OK: Status = Status::SUCCESS;
    const CONFLICT: Status = Status::RESERVATION_CONFLICT;
    let place = Place::in_memory("portal-reservations");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "disk", "--size", "512MiB"]);
    let (portals, nqn) = export(&cluster, &["disk"]);
    for address in &portals {
        wait_until("a portal serves", || connects(*address, &nqn, HOST));
    }
    let (first, second) = (portals[0], portals[1]);
    // In the second chunk, which no host has written yet.
    let far = 300 << 8;
    reactor::run(&reactor::Config::default(), async {
        let one = Reserving::connect(1, first, &nqn).await;
        let two = Reserving::connect(2, second, &nqn).await;
        let three = Reserving::connect(3, second, &nqn).await;
        assert_eq!((one.write(0).await, two.write(1).await), (OK, OK));
        assert_eq!(one.register(RegisterAction::Register).await, OK);
        assert_eq!(two.register(RegisterAction::Register).await, OK);
        assert_eq!(one.acquire(AcquireAction::Acquire, WriteExclusive, 0).await, OK);
        // In force at the other portal, on chunks that were written by it and on those that were not.
        assert_eq!(
            (two.write(1).await, two.write(far).await, three.write(far).await),
            (CONFLICT, CONFLICT, CONFLICT)
        );
        assert_eq!((two.read(0).await, one.write(far).await), (OK, OK));
        let report = two.report().await;
        assert_eq!(
            (report.header.kind, report.header.registrants),
            (WriteExclusive.code(), 2)
        );
        // Only the holder's key takes it over; then the first host is out.
        assert_eq!(
            two.acquire(AcquireAction::Acquire, WriteExclusive, 0).await,
            CONFLICT
        );
        let preempt = AcquireAction::PreemptAndAbort;
        assert_eq!(two.acquire(preempt, WriteExclusive, one.key()).await, OK);
        assert_eq!(
            (one.write(0).await, one.write(far).await, two.write(far).await),
            (CONFLICT, CONFLICT, OK)
        );
        // Exclusive access keeps readers out as well.
        assert_eq!(two.release(WriteExclusive).await, OK);
        assert_eq!((one.write(0).await, three.write(1).await), (OK, OK));
        assert_eq!(two.acquire(AcquireAction::Acquire, ExclusiveAccess, 0).await, OK);
        assert_eq!(
            (one.read(far).await, three.read(0).await, two.read(0).await),
            (CONFLICT, CONFLICT, OK)
        );
        assert_eq!(two.release(ExclusiveAccess).await, OK);
        // Who registers by one portal may write by the other at once.
        assert_eq!(
            two.acquire(AcquireAction::Acquire, WriteExclusiveRegistrants, 0)
                .await,
            OK
        );
        let elsewhere = Reserving::connect(3, first, &nqn).await;
        assert_eq!(elsewhere.write(3).await, CONFLICT);
        assert_eq!(three.register(RegisterAction::Register).await, OK);
        assert_eq!(elsewhere.write(3).await, OK);
        assert_eq!(three.register(RegisterAction::Unregister).await, OK);
        assert_eq!(elsewhere.write(3).await, CONFLICT);
        // The first host was told by its own portal of what another did.
        assert_eq!(one.next_notice().await.kind, 1, "registration preempted");
    })
    .unwrap();
    let shown = cluster.json(&["volume", "reservations", "disk"]);
    assert_eq!(
        (
            shown["type"].as_str(),
            shown["registrants"].as_array().map(Vec::len)
        ),
        (Some("Write Exclusive - Registrants Only"), Some(1))
    );
    let refused = cluster.run(&["fs", "format", "disk", "--force"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("hosts have reserved volume"));

    // A portal that stands still while the reservation changes hands does nothing of what is no more allowed.
    let stopped = node_at(&cluster, second);
    let signal = |signal: Signal| {
        for lock in [cluster.engine_lock(stopped), cluster.target_lock(stopped)] {
            let process = Pid::from_raw(crate::support::process(&lock).unwrap() as i32).unwrap();
            kill_process(process, signal).unwrap();
        }
    };
    reactor::run(&reactor::Config::default(), async {
        let holder = Reserving::connect(2, second, &nqn).await;
        assert_eq!(holder.write(7).await, OK);
        let other = Reserving::connect(4, first, &nqn).await;
        assert_eq!(other.register(RegisterAction::Register).await, OK);
        signal(Signal::STOP);
        let late = {
            let command = Command::write(1, Lba(7), BlockCount(1));
            let queue = holder.namespace.queue().clone();
            reactor::spawn(async move { queue.execute(command, given(&[0xee; 4096])).await.status() })
        };
        reactor::time::sleep(Duration::from_millis(100)).await;
        let preempt = AcquireAction::PreemptAndAbort;
        let status = other
            .acquire(preempt, WriteExclusiveRegistrants, holder.key())
            .await;
        assert_eq!(status, OK);
        assert_eq!(other.write(7).await, OK);
        signal(Signal::CONT);
        let late = late.await.unwrap();
        assert!(late == CONFLICT || late.is_path_related(), "{late:?}");
        let command = Command::read(1, Lba(7), BlockCount(1));
        let room = Data::Into(BufferPool::current().try_allocate(4096).unwrap());
        let read = other.namespace.queue().execute(command, room).await;
        assert_eq!(read.data.into_read().to_vec(), vec![4; 4096]);
    })
    .unwrap();

    // Kept by the masters: a portal's next life knows it. And an administrator voids it.
    cluster.wait(&["status"], |said| said.contains("all copies in sync"));
    let life = cluster.incarnation(stopped);
    kill(&cluster.target_lock(stopped));
    cluster.wait_for_life_after(stopped, life);
    wait_until("the portal serves again", || connects(second, &nqn, HOST));
    let write = |expected: Status| {
        reactor::run(&reactor::Config::default(), async {
            let stranger = Reserving::connect(5, second, &nqn).await;
            assert_eq!(stranger.write(9).await, expected);
        })
        .unwrap();
    };
    write(CONFLICT);
    // Chunks that the volume gets now have never heard of a token; who is kept out is so there, too.
    cluster.succeed(&["volume", "resize", "disk", "--size", "768MiB"]);
    let beyond = 600 << 8;
    reactor::run(&reactor::Config::default(), async {
        for (number, expected) in [(5, CONFLICT), (4, OK)] {
            for address in [first, second] {
                // Portals disconnect their hosts when they hear of it.
                let mut status = None;
                for _ in 0..100 {
                    if let Some(host) = Reserving::try_connect(number, address, &nqn).await
                        && host.namespace.geometry().blocks == BlockCount(768 << 8)
                    {
                        status = Some(host.write(beyond).await);
                        break;
                    }
                    reactor::time::sleep(Duration::from_millis(100)).await;
                }
                assert_eq!(status, Some(expected), "host {number} by {address}");
            }
        }
    })
    .unwrap();
    let said = cluster.succeed(&["volume", "reservations", "disk", "--clear"]);
    assert!(said.contains("may write"), "{said}");
    write(OK);
    // In force on every copy, though hosts write next to nothing.
    wait_until("a portal puts it in force", || {
        cluster.json(&["volume", "reservations", "disk"])["in_force"] == true
    });
    cluster.end();
}
