//! Layers do what their methods say: planted errors strike, delays delay, limits limit.

use std::time::{Duration, Instant};

use bdev::IoError;
use serde_json::json;

use super::daemon::{Daemon, free_address};
use super::host::{BLOCK_BYTES, open, read, run, write};

#[test]
fn a_planted_error_strikes_as_often_as_was_said() {
    let (daemon, address) = (Daemon::start(&[]), free_address());
    daemon.listen(address);
    let memory = json!({ "name": "Malloc0", "num_blocks": 64, "block_size": 4096 });
    daemon.call("bdev_malloc_create", memory);
    daemon.call("bdev_error_create", json!({ "base_name": "Malloc0" }));
    daemon.add_namespace("EE_Malloc0");
    let (code, message) = daemon
        .try_call("bdev_error_create", json!({ "base_name": "Malloc0" }))
        .unwrap_err();
    assert!(
        code == -1 && message.contains("Error Injection Disk"),
        "{message} ({code})"
    );
    let inject = |more: serde_json::Value| {
        let mut params = json!({ "name": "EE_Malloc0" });
        params
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        daemon.call("bdev_error_inject_error", params);
    };
    run(async {
        let (_controller, channel) = open(address, 1).await;
        write(&channel, 1, 0x11).await.unwrap();
        inject(json!({ "io_type": "read", "error_type": "failure", "num": 2 }));
        assert_eq!(read(&channel, 1).await, Err(IoError::Media));
        assert_eq!(read(&channel, 1).await, Err(IoError::Media));
        assert_eq!(read(&channel, 1).await.unwrap(), vec![0x11; BLOCK_BYTES]);

        inject(json!({
            "io_type": "read", "error_type": "corrupt_data", "corrupt_offset": 5, "corrupt_value": 0xff,
        }));
        let mut expected = vec![0x11; BLOCK_BYTES];
        expected[5] = 0xee;
        assert_eq!(read(&channel, 1).await.unwrap(), expected);

        inject(json!({ "io_type": "write", "error_type": "pending" }));
        let mut hanging = std::pin::pin!(write(&channel, 2, 0x22));
        let waited = reactor::time::timeout(Duration::from_millis(100), &mut hanging).await;
        assert!(waited.is_err(), "the write should hang");
        daemon.call("bdev_error_resume_pending", json!({ "name": "EE_Malloc0" }));
        hanging.await.unwrap();
        assert_eq!(read(&channel, 2).await.unwrap(), vec![0x22; BLOCK_BYTES]);
    });
    let failed = &daemon.call("bdev_get_iostat", json!({ "name": "EE_Malloc0" }))["bdevs"][0]["io_error"];
    assert_eq!(*failed, json!({ "failed": 2 }));
    // Whoever stands on a device goes with it.
    daemon.call("bdev_malloc_delete", json!({ "name": "Malloc0" }));
    assert_eq!(daemon.call("bdev_get_bdevs", json!({})), json!([]));
}

#[test]
fn delays_delay_and_limits_limit() {
    let (daemon, address) = (Daemon::start(&[]), free_address());
    daemon.listen(address);
    let memory = json!({ "name": "Malloc0", "num_blocks": 64, "block_size": 4096 });
    daemon.call("bdev_malloc_create", memory);
    let delay = json!({
        "base_bdev_name": "Malloc0", "name": "Slow",
        "avg_read_latency": 20_000, "p99_read_latency": 20_000, "avg_write_latency": 0, "p99_write_latency": 0,
    });
    daemon.call("bdev_delay_create", delay);
    daemon.add_namespace("Slow");
    run(async {
        let (_controller, channel) = open(address, 1).await;
        let begun = Instant::now();
        read(&channel, 0).await.unwrap();
        assert!(
            begun.elapsed() >= Duration::from_millis(20),
            "{:?}",
            begun.elapsed()
        );
        let update = json!({ "delay_bdev_name": "Slow", "latency_us": 0, "latency_type": "avg_read" });
        daemon.call("bdev_delay_update_latency", update);
        let update = json!({ "delay_bdev_name": "Slow", "latency_us": 0, "latency_type": "p99_read" });
        daemon.call("bdev_delay_update_latency", update);

        // 200 reads at 1000 a second take 0.2 s, less the burst of a millisecond and the one that begins at once.
        let limit = json!({ "name": "Slow", "rw_ios_per_sec": 1000 });
        daemon.call("bdev_set_qos_limit", limit);
        let begun = Instant::now();
        for lba in 0..200 {
            read(&channel, lba % 64).await.unwrap();
        }
        assert!(
            begun.elapsed() >= Duration::from_millis(195),
            "{:?}",
            begun.elapsed()
        );
        // 4 MiB at 16 MiB a second take 0.25 s.
        let limit = json!({ "name": "Slow", "rw_ios_per_sec": 0, "w_mbytes_per_sec": 16 });
        daemon.call("bdev_set_qos_limit", limit);
        let begun = Instant::now();
        for lba in 0..1024 {
            write(&channel, lba % 64, 1).await.unwrap();
        }
        assert!(
            begun.elapsed() >= Duration::from_millis(245),
            "{:?}",
            begun.elapsed()
        );
        let shown = daemon.call("bdev_get_bdevs", json!({ "name": "Slow" }));
        assert_eq!(shown[0]["assigned_rate_limits"]["w_mbytes_per_sec"], json!(16));
    });
}
