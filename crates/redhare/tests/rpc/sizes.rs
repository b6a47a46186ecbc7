//! Devices that get another size while hosts use them.

use std::time::Duration;

use bdev::{Channel, Data};
use foundation::{BlockCount, Lba};
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::{Command, Status};
use serde_json::json;

use super::daemon::{Daemon, NQN, free_address};
use super::host::{BLOCK_BYTES, open, read, run, write};

#[test]
fn a_device_grows_under_its_hosts_and_does_not_shrink() {
    let (daemon, address) = (Daemon::start(&[]), free_address());
    daemon.listen(address);
    let disk = daemon.directory().join("disk");
    let file = std::fs::File::create(&disk).unwrap();
    file.set_len(1 << 20).unwrap();
    let null = json!({ "name": "Null0", "num_blocks": 256, "block_size": 4096 });
    daemon.call("bdev_null_create", null);
    let aio = json!({ "name": "Aio0", "filename": disk, "block_size": 4096 });
    daemon.call("bdev_aio_create", aio);
    // What stands on a device grows with it.
    daemon.call("bdev_error_create", json!({ "base_name": "Aio0" }));
    daemon.add_namespace("EE_Aio0");
    daemon.add_namespace("Null0");
    let grow_file = || {
        file.set_len(2 << 20).unwrap();
        daemon.call("bdev_aio_rescan", json!({ "name": "Aio0" }));
    };
    let grow_null = || {
        daemon.call("bdev_null_resize", json!({ "name": "Null0", "new_size": 2 }));
    };
    let ways: [(u32, &dyn Fn()); 2] = [(1, &grow_file), (2, &grow_null)];
    for (nsid, grow) in ways {
        run(async {
            let (controller, channel) = open(address, nsid).await;
            let mut events = controller.events().await.unwrap();
            write(&channel, 255, 0x55).await.unwrap();
            let beyond = Command::verify(nsid, Lba(256), BlockCount(1));
            let refused = channel.queue().execute(beyond, Data::None).await;
            assert_eq!(refused.status(), Status::LBA_OUT_OF_RANGE);
            grow();
            let limit = Duration::from_secs(5);
            let event = reactor::time::timeout(limit, events.recv())
                .await
                .expect("a notice comes");
            assert_eq!(event, Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED));
            let channel = controller.open_namespace(nsid).await.unwrap();
            assert_eq!(Channel::geometry(&channel).blocks.0, 512);
            write(&channel, 511, 0x66).await.unwrap();
            if nsid == 1 {
                assert_eq!(read(&channel, 255).await.unwrap(), vec![0x55; BLOCK_BYTES]);
                assert_eq!(read(&channel, 511).await.unwrap(), vec![0x66; BLOCK_BYTES]);
            }
        });
    }
    let blocks = |name: &str| daemon.call("bdev_get_bdevs", json!({ "name": name }))[0]["num_blocks"].clone();
    file.set_len(1 << 20).unwrap();
    for (method, params) in [
        ("bdev_aio_rescan", json!({ "name": "Aio0" })),
        ("bdev_null_resize", json!({ "name": "Null0", "new_size": 1 })),
    ] {
        let (code, message) = daemon.try_call(method, params).unwrap_err();
        assert!(
            code == -16 && message.contains("would shrink to 256"),
            "{message} ({code})"
        );
    }
    assert_eq!((blocks("Aio0"), blocks("Null0")), (json!(512), json!(512)));
    let (code, message) = daemon
        .try_call("bdev_uring_rescan", json!({ "name": "Aio0" }))
        .unwrap_err();
    assert!(
        code == -19 && message.contains("its own kind's method"),
        "{message}"
    );
    // Nobody uses it any more.
    daemon.call("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": 2 }));
    daemon.call("bdev_null_resize", json!({ "name": "Null0", "new_size": 1 }));
    assert_eq!(blocks("Null0"), json!(256));
    let nothing = json!({ "name": "Null0", "new_size": 0 });
    assert_eq!(daemon.try_call("bdev_null_resize", nothing).unwrap_err().0, -22);
}
