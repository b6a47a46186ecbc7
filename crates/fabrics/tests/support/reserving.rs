//! Hosts that reserve namespace 1.

use std::rc::Rc;
use std::time::Duration;

use bdev::Data;
use fabrics::initiator::{ConnectOptions, Controller, NamespaceChannel};
use foundation::{BlockCount, Lba};
use protocols::nvme::admin::{GetFeatures, GetLogPage, Identify, SetFeatures};
use protocols::nvme::command::Fuse;
use protocols::nvme::copy::{self, CopyRange};
use protocols::nvme::dsm::{self, DsmRange};
use protocols::nvme::features::Feature;
use protocols::nvme::identify::{IdentifyNamespace, IdentifyNamespaceIndependent};
use protocols::nvme::log::{LogPage, ReservationNotification};
use protocols::nvme::reservation::{
    AcquireAction, AcquireKeys, AskReservationReport, ChangePersistence, RegisterAction, RegisterKeys,
    ReleaseAction, ReleaseKey, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport, ReservationType,
};
use protocols::nvme::{Command, Status};
use reactor::{BufferPool, spawn, time};

use super::{NQN, bytes, nqn, room};

pub(crate) const OK: Status = Status::SUCCESS;
pub(crate) const CONFLICT: Status = Status::RESERVATION_CONFLICT;
pub(crate) const KEEP: ChangePersistence = ChangePersistence::Keep;

/// A host: a controller and an I/O queue, known by its number.
pub(crate) struct Host {
    pub(crate) number: u8,
    pub(crate) controller: Rc<Controller>,
    pub(crate) namespace: Rc<NamespaceChannel>,
}

pub(crate) fn data(bytes: &[u8]) -> Data {
    let mut buffer = BufferPool::current().try_allocate(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    Data::From(buffer.freeze())
}

impl Host {
    pub(crate) async fn connect(number: u8, options: &ConnectOptions) -> Self {
        let name = nqn(&format!("nqn.2026-11.io.redhare:host-{number}"));
        let options = ConnectOptions::new(options.address, nqn(NQN), name, [number; 16]);
        let controller = Controller::connect(options).await.unwrap();
        let namespace = Rc::new(controller.open_namespace(1).await.unwrap());
        Self {
            number,
            controller,
            namespace,
        }
    }

    pub(crate) async fn status(&self, command: Command, data: Data) -> Status {
        self.namespace.queue().execute(command, data).await.status()
    }

    /// The key that it registers.
    pub(crate) fn key(&self) -> u64 {
        u64::from(self.number) + 0x1000
    }

    pub(crate) async fn change_key(
        &self,
        action: RegisterAction,
        keys: RegisterKeys,
        ignore_existing_key: bool,
        persistence: ChangePersistence,
    ) -> Status {
        let register = ReservationRegister {
            nsid: 1,
            action: action.code(),
            ignore_existing_key,
            persistence: persistence.code(),
        };
        self.status(register.to_command(), data(&keys.encode())).await
    }

    pub(crate) async fn register(&self, persistence: ChangePersistence) -> Status {
        let keys = RegisterKeys {
            current: 0,
            new: self.key(),
        };
        self.change_key(RegisterAction::Register, keys, false, persistence)
            .await
    }

    pub(crate) async fn unregister(&self) -> Status {
        let keys = RegisterKeys {
            current: self.key(),
            new: 0,
        };
        let keep = ChangePersistence::Keep;
        self.change_key(RegisterAction::Unregister, keys, false, keep)
            .await
    }

    pub(crate) async fn acquire(&self, action: AcquireAction, kind: ReservationType, preempt: u64) -> Status {
        let acquire = ReservationAcquire {
            nsid: 1,
            action: action.code(),
            ignore_existing_key: false,
            kind: kind.code(),
        };
        let keys = AcquireKeys {
            current: self.key(),
            preempt,
        };
        self.status(acquire.to_command(), data(&keys.encode())).await
    }

    pub(crate) async fn release(&self, action: ReleaseAction, kind: ReservationType) -> Status {
        let release = ReservationRelease {
            nsid: 1,
            action: action.code(),
            ignore_existing_key: false,
            kind: kind.code(),
        };
        let key = ReleaseKey { current: self.key() };
        self.status(release.to_command(), data(&key.encode())).await
    }

    pub(crate) async fn report(&self) -> ReservationReport {
        let ask = AskReservationReport {
            nsid: 1,
            length_dwords: 1024,
            extended: true,
        };
        let result = self.namespace.queue().execute(ask.to_command(), room(4096)).await;
        assert_eq!(result.status(), Status::SUCCESS);
        ReservationReport::decode(&result.data.into_read(), true).unwrap()
    }

    pub(crate) async fn write(&self) -> Status {
        let write = Command::write(1, Lba(0), BlockCount(1));
        self.status(write, Data::From(bytes(512, 1))).await
    }

    pub(crate) async fn read(&self) -> Status {
        self.status(Command::read(1, Lba(0), BlockCount(1)), room(512))
            .await
    }

    /// What becomes of each command: those that read, then those that write.
    pub(crate) async fn try_all(&self) -> (Vec<Status>, Vec<Status>) {
        let zeros = || data(&[0; 512]);
        let (at, one) = (Lba(9), BlockCount(1));
        let queue = self.namespace.queue();
        // Something that compares equal.
        let reads = vec![
            self.status(Command::read(1, at, one), room(512)).await,
            self.status(Command::compare(1, at, one), zeros()).await,
            self.status(Command::verify(1, at, one), Data::None).await,
        ];
        let ranges = data(&dsm::encode_ranges(&[DsmRange::new(Lba(64), 1)]).unwrap());
        let hints = data(&dsm::encode_ranges(&[DsmRange::new(Lba(64), 1)]).unwrap());
        let sources = data(&copy::encode_ranges(&[CopyRange::new(Lba(64), one)]).unwrap());
        let mut writes = vec![
            self.status(Command::write(1, at, one), zeros()).await,
            self.status(Command::write_zeroes(1, at, one), Data::None).await,
            self.status(Command::deallocate(1, 1), ranges).await,
            self.status(Command::deallocate(1, 1).with_cdw11(0), hints).await,
            self.status(Command::copy(1, Lba(65), 1), sources).await,
            self.status(Command::flush(1), Data::None).await,
            self.status(Command::flush(0xffff_ffff), Data::None).await,
        ];
        let compare = Command::compare(1, at, one).with_fuse(Fuse::First);
        let write = Command::write(1, at, one).with_fuse(Fuse::Second);
        let first = {
            let namespace = self.namespace.clone();
            spawn(async move {
                let result = namespace.queue().execute(compare, data(&[0; 512])).await;
                result.status()
            })
        };
        // The first half is on its way before the second is given.
        while queue.outstanding() == 0 {
            time::sleep(Duration::from_micros(100)).await;
        }
        let second = self.status(write, zeros()).await;
        let first = first.await.unwrap();
        let whole = match (first, second) {
            (Status::SUCCESS, Status::SUCCESS) => Status::SUCCESS,
            (Status::RESERVATION_CONFLICT, Status::ABORTED_FAILED_FUSED)
            | (Status::ABORTED_FAILED_FUSED, Status::RESERVATION_CONFLICT) => Status::RESERVATION_CONFLICT,
            other => panic!("a fused operation ended with {other:?}"),
        };
        writes.push(whole);
        (reads, writes)
    }

    pub(crate) async fn set_feature(&self, nsid: u32, feature: Feature, value: u32) -> Result<(), String> {
        let set = SetFeatures {
            nsid,
            feature: feature.code(),
            save: false,
            value,
        };
        let answer = self
            .controller
            .admin("Set Features", set.to_command(), Data::None)
            .await;
        answer.map(drop).map_err(|error| error.to_string())
    }

    pub(crate) async fn feature(&self, nsid: u32, feature: Feature, select: u8) -> Result<u32, String> {
        let get = GetFeatures {
            nsid,
            feature: feature.code(),
            select,
            value: 0,
        };
        let answer = self
            .controller
            .admin("Get Features", get.to_command(), Data::None)
            .await;
        answer
            .map(|(completion, _)| completion.result())
            .map_err(|error| error.to_string())
    }

    pub(crate) async fn notification(&self, retain_event: bool) -> ReservationNotification {
        let get = GetLogPage {
            retain_event,
            ..GetLogPage::new(0, LogPage::ReservationNotification.code(), 64)
        };
        let answer = self
            .controller
            .admin("Get Log Page", get.to_command(), room(64))
            .await;
        ReservationNotification::decode(&answer.unwrap().1.into_read()).unwrap()
    }

    pub(crate) async fn identify(&self) -> (u8, u8) {
        let ask = async |cns| {
            let identify = Identify {
                nsid: 1,
                cns,
                ..Identify::default()
            };
            let command = identify.to_command();
            let answer = self.controller.admin("Identify", command, room(4096)).await;
            answer.unwrap().1.into_read()
        };
        let namespace = IdentifyNamespace::decode(&ask(0).await).unwrap();
        let independent = IdentifyNamespaceIndependent::decode(&ask(8).await).unwrap();
        (namespace.rescap, independent.rescap)
    }
}
