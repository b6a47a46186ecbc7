//! What a copy that comes back is sent does not lie about in its disk while others ask something.

use super::*;

/// The most that the disk of a copy that comes back kept back at any time, while 4 MiB are sent to it.
fn kept_back(others_ask: bool) -> u64 {
    let cluster = Cluster::with_volume(540);
    let write_every_region = |epoch, salt: u64| {
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(30), move || async move {
            let client = Client::connect(hosts[0], 0, epoch).await.unwrap();
            for region in 0..4 {
                client.write_until_done(epoch, region * 256, region + salt).await;
            }
        });
    };
    write_every_region(1, 0);
    cluster.simulation.power_off(cluster.hosts[2]);
    cluster.configure(2, 0, &[0, 1]);
    write_every_region(2, 1000);

    cluster.start(2);
    cluster.simulation.run_for(Duration::from_secs(2));
    let disk = cluster.simulation.disk(cluster.hosts[2], Path::new("/disk"));
    disk.take_most_unsynced_bytes();
    cluster.tell(&[2], 2, 0, &[0, 1]);
    if others_ask {
        let (client, hosts) = (cluster.simulation.add_host("client"), cluster.hosts.clone());
        cluster.simulation.start(client, move || async move {
            // Of a copy that comes back nobody reads, and what would be written is not resync's.
            let client = Rc::new(Client::connect(hosts[2], 2, 2).await.unwrap());
            loop {
                let client = client.clone();
                drop(reactor::spawn(async move {
                    let buffer = BufferPool::current().try_allocate(8192).unwrap();
                    client
                        .run(NativeOperation::Read, 2, 0, 2, Data::Into(buffer))
                        .await
                }));
                time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    cluster.simulation.run_for(Duration::from_secs(8));
    let most = disk.take_most_unsynced_bytes();
    assert!(disk.operations() > 32, "it was sent nothing");
    most
}

#[test]
fn a_flush_has_little_to_do_while_others_ask_something() {
    let piece = 128 << 10;
    let (alone, beside) = (kept_back(false), kept_back(true));
    assert!(alone > 16 * piece, "{alone} bytes: nothing is shown");
    // Four are under way at once, since nobody asks anything of the write node.
    assert!(beside <= 5 * piece, "{beside} bytes");
}
