//! What was saved comes back, from a saved configuration and from a configuration file.

use serde_json::json;

use super::daemon::{Daemon, NQN, free_address, listener};
use super::host::{HOST, open, read, run, write};

#[test]
fn a_saved_configuration_comes_back_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    // Direct I/O or not, the device takes what the file system here gives.
    let disk = directory.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let (address, file) = (free_address(), directory.path().join("saved.json"));
    let saved = {
        let daemon = Daemon::start(&[]);
        daemon.listen(address);
        daemon.add_memory("Malloc0");
        let aio = json!({ "name": "Aio0", "filename": disk, "block_size": 4096 });
        daemon.call("bdev_aio_create", aio);
        daemon.call(
            "bdev_set_qos_limit",
            json!({ "name": "Aio0", "r_mbytes_per_sec": 100 }),
        );
        assert_eq!(daemon.add_namespace("Aio0"), json!(2));
        daemon.call(
            "bdev_null_create",
            json!({ "name": "Null0", "num_blocks": 8, "block_size": 512 }),
        );
        daemon.call("nvmf_subsystem_add_host", json!({ "nqn": NQN, "host": HOST }));
        run(async {
            let (_controller, channel) = open(address, 2).await;
            write(&channel, 3, 0x33).await.unwrap();
        });
        let saved = daemon.saved();
        daemon.end();
        saved
    };
    std::fs::write(&file, saved.to_string()).unwrap();
    let daemon = Daemon::start(&["--json-config", file.to_str().unwrap()]);
    assert_eq!(daemon.saved(), saved);
    run(async {
        let (_controller, channel) = open(address, 2).await;
        assert_eq!(read(&channel, 3).await.unwrap(), vec![0x33; 4096]);
    });
}

#[test]
fn what_a_configuration_file_makes_is_managed_too() {
    let directory = tempfile::tempdir().unwrap();
    let (address, more) = (free_address(), free_address());
    let file = directory.path().join("target.toml");
    let disk = directory.path().join("new-disk");
    let text = format!(
        "[nvme_tcp]\nlisten = [\"{address}\"]\n[[subsystem]]\nnqn = \"{NQN}\"\n\
         [[subsystem.namespace]]\nnsid = 3\nfile = \"{}\"\nsize = \"1MiB\"\n",
        disk.display()
    );
    std::fs::write(&file, text).unwrap();
    let daemon = Daemon::start(&["--config", file.to_str().unwrap()]);
    let subsystem = &daemon.call("nvmf_get_subsystems", json!({ "nqn": NQN }))[0];
    let device = format!("{NQN}/3");
    assert_eq!(subsystem["namespaces"][0]["bdev_name"], json!(device));
    daemon.call("nvmf_subsystem_add_listener", listener(NQN, more));
    run(async {
        for address in [address, more] {
            let (_controller, channel) = open(address, 3).await;
            write(&channel, 1, 1).await.unwrap();
        }
    });
    let statistics = daemon.call("bdev_get_iostat", json!({ "names": [device] }));
    assert_eq!(statistics["bdevs"][0]["num_write_ops"], json!(2));
}
