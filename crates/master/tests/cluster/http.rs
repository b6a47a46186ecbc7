//! What masters serve over HTTP: to a plain connection, and only where an address was named.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use master::{Master, RunError, StoreConfig, v1};

use crate::etcd::{self, Etcd};
use crate::fake::{Fake, Running, client, config, create, runtime, uuid};

/// Sends these bytes and reads to the end.
fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

fn serving(store: impl Into<StoreConfig>, directory: &std::path::Path) -> master::Config {
    let mut config = config(directory, 0);
    config.store = store.into();
    config.http = Some(([127, 0, 0, 1], 0).into());
    config
}

/// Node 3, which calls itself what means something to browsers.
fn strange_node() -> v1::RegisterRequest {
    v1::RegisterRequest {
        node: uuid(3),
        peer_address: "<b>\"x:4423".to_owned(),
        disks: vec![v1::Disk {
            uuid: uuid(103),
            capacity_bytes: 1 << 30,
            ..v1::Disk::default()
        }],
        ..v1::RegisterRequest::default()
    }
}

#[test]
fn a_cluster_is_shown_to_browsers_and_scraped() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::begin(serving(directory.path().to_path_buf(), directory.path()));
    let address = master.http().unwrap();
    runtime().block_on(async {
        let client = client(master.port()).await;
        let _nodes = (Fake::start(&client, 1).await, Fake::start(&client, 2).await);
        create(&client, "data", 2).await.unwrap();
        // The names of volumes are plain; addresses of nodes are what they say.
        let refused = create(&client, "<b>\"x", 2).await.unwrap_err().to_string();
        assert!(refused.contains("letters, digits"), "{refused}");
        client.register(strange_node()).await.unwrap();
    });
    let page = get(address, "/");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for part in [
        "content-type: text/html; charset=utf-8\r\n",
        "content-security-policy: default-src 'none';",
        "<td>data</td><td>64 MiB</td>",
        "all copies in sync",
        "<td>&lt;b&gt;&quot;x:4423</td>",
        "<td>leads</td>",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    assert!(!page.contains("<b>"), "{page}");
    let metrics = get(address, "/metrics");
    let node = master::uuid_text(&uuid(3));
    for part in [
        "content-type: text/plain; version=0.0.4; charset=utf-8\r\n",
        "\nredhare_master_leads 1\n",
        "\nredhare_master_calls_total{method=\"Volumes/Create\",code=\"Ok\"} 1\n",
        "\nredhare_master_calls_total{method=\"Volumes/Create\",code=\"InvalidArgument\"} 1\n",
        &format!("\nredhare_node_alive{{node=\"{node}\",address=\"<b>\\\"x:4423\"}} 1\n"),
        "\nredhare_volume_chunks{volume=\"data\"} 4\n",
        "\nredhare_volume_degraded_chunks{volume=\"data\"} 0\n",
    ] {
        assert!(metrics.contains(part), "{part} is not in {metrics}");
    }
    let json = get(address, "/status.json");
    assert!(
        json.contains("\"name\":\"data\"") && json.contains("\"verdict\":\"healthy\""),
        "{json}"
    );
    assert!(get(address, "/else").starts_with("HTTP/1.1 404 "));
    assert!(get(address, "/metrics/").starts_with("HTTP/1.1 404 "));
    let posted = exchange(
        address,
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    );
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
    let endless = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 16));
    let mut stream = TcpStream::connect(address).unwrap();
    // It may be cut off while it is sent.
    drop(stream.write_all(endless.as_bytes()));
    let mut refused = Vec::new();
    drop(stream.read_to_end(&mut refused));
    assert!(!refused.starts_with(b"HTTP/1.1 2"), "{refused:?}");
    master.end();
    assert!(TcpStream::connect(address).is_err(), "it listens on");
}

#[test]
fn clients_that_send_nothing_are_left_and_others_are_answered_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::begin(serving(directory.path().to_path_buf(), directory.path()));
    let address = master.http().unwrap();
    let began = Instant::now();
    let mut slow: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    slow[0].write_all(b"GET / HTTP/1.1\r\nHost").unwrap();
    assert!(get(address, "/metrics").contains("redhare_master_leads 1"));
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("it is closed");
        assert!(!rest.starts_with(b"HTTP/1.1 2"), "{rest:?}");
    }
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(4) && took < Duration::from_secs(25),
        "{took:?}"
    );
    master.end();
}

#[test]
fn nothing_listens_that_nobody_named_and_a_taken_address_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 0);
    assert_eq!(master.http(), None);
    master.end();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let other = tempfile::tempdir().unwrap();
    let mut config = config(other.path(), 0);
    config.http = Some(address);
    let error = runtime().block_on(async { Master::start(&config).await.unwrap_err() });
    assert!(matches!(error, RunError::Http { .. }), "{error}");
    let said = error.to_string();
    assert!(
        said.starts_with(&format!(
            "the master cannot serve the dashboard and metrics on {address}: "
        )) && said.contains("choose a free port"),
        "{said}"
    );
}

#[test]
fn of_two_masters_one_has_the_cluster_and_the_other_says_who_leads() {
    if !etcd::is_there("of_two_masters_one_has_the_cluster_and_the_other_says_who_leads") {
        return;
    }
    let etcd = Etcd::start(1);
    let directory = tempfile::tempdir().unwrap();
    let store = || StoreConfig::parse(&format!("etcd://{}/http", etcd.endpoints())).unwrap();
    let begin = || Running::begin(serving(store(), directory.path()));
    let masters = [begin(), begin()];
    let scrape = |master: &Running| get(master.http().unwrap(), "/metrics");
    let deadline = Instant::now() + Duration::from_secs(60);
    let leads = |text: &String| text.contains("\nredhare_master_leads 1\n");
    let follower = loop {
        let scraped = masters.each_ref().map(scrape);
        let leading = scraped.iter().filter(|text| leads(text)).count();
        let shown = scraped
            .iter()
            .filter(|text| text.contains("redhare_cluster_nodes"))
            .count();
        assert!(leading <= 1 && shown == leading, "{scraped:?}");
        if leading == 1 {
            break scraped.iter().position(|text| !leads(text)).unwrap();
        }
        assert!(Instant::now() < deadline, "nobody leads: {scraped:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let leader = format!("127.0.0.1:{}", masters[1 - follower].port());
    let own = format!("127.0.0.1:{}", masters[follower].port());
    let said = format!("The master at <strong>{leader}</strong> leads");
    // It hears of it when it looks at the store next.
    loop {
        let page = get(masters[follower].http().unwrap(), "/");
        if page.contains(&said) {
            assert!(page.contains(&format!("This is the master at {own}.")), "{page}");
            assert!(!page.contains("<h2>Nodes</h2>"), "{page}");
            break;
        }
        assert!(Instant::now() < deadline, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let json = get(masters[follower].http().unwrap(), "/status.json");
    assert!(json.starts_with("HTTP/1.1 503 "), "{json}");
    // When the store is gone the leader says so.
    drop(etcd);
    let leader = &masters[1 - follower];
    let text = loop {
        let text = scrape(leader);
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        let says = |line: &str| text.contains(line);
        if says("\nredhare_master_store_answers 0\n") && says("\nredhare_master_leads 1\n") {
            break text;
        }
        // What it asked last may have been answered; and while it waits for etcd it cannot say whether it leads.
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(!text.contains("redhare_cluster_"), "{text}");
    masters.into_iter().for_each(Running::end);
}
