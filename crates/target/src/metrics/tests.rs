//! A target under commands of a real host, scraped over HTTP, read by a strict parser.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bdev::memory::MemoryDevice;
use bdev::{BlockDevice, Channel, ChannelExt};
use fabrics::initiator::{ConnectOptions, Controller};
use fabrics::target::{Hosts, Latencies, Namespace, Options, Subsystem};
use foundation::{BlockCount, Lba};
use protocols::nvme::Nqn;
use reactor::{BufferPool, time};

use super::*;

const TABLE: &str = include_str!("../../../../docs/metrics.md");

/// What a page holds: kinds by family, and values by name with labels as they are written.
struct Page {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Splits `a{b="c",d="e"}` and checks its grammar.
fn labels(series: &str) -> (&str, Vec<(&str, &str)>) {
    let Some((name, rest)) = series.split_once('{') else {
        return (series, Vec::new());
    };
    let mut rest = rest.strip_suffix('}').expect("labels end with a brace");
    let mut labels = Vec::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").expect("a label has a value in quotes");
        assert!(is_name(label), "{label}");
        let (value, after) = after.split_once('"').expect("a value ends with quotes");
        assert!(!value.contains(['\\', '\n']), "no value here needs an escape");
        labels.push((label, value));
        rest = after.strip_prefix(',').unwrap_or(after);
        assert!(rest.is_empty() || after.starts_with(','));
    }
    (name, labels)
}

impl Page {
    /// Every rule of the text format, and the conventions for names and units.
    fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'));
        let mut page = Self {
            kinds: BTreeMap::new(),
            samples: BTreeMap::new(),
        };
        let mut family = String::new();
        let mut helped = BTreeSet::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').expect("help has words");
                assert!(!words.is_empty() && helped.insert(name.to_owned()), "{line}");
                family = name.to_owned();
                continue;
            }
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type has a kind");
                assert_eq!(name, family, "the type follows the help");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(is_name(name) && name.starts_with("redhare_"));
                assert!(kind != "histogram" || name.ends_with("_seconds"));
                page.kinds.insert(name.to_owned(), kind.to_owned());
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
            let value: f64 = value.parse().expect("a value is a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let (name, _) = labels(series);
            let bare = match page.kinds[&family].as_str() {
                "histogram" => ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|suffix| name.strip_suffix(suffix))
                    .expect("a histogram's samples have suffixes"),
                _ => name,
            };
            assert_eq!(bare, family, "samples stand below their family");
            assert!(
                page.samples.insert(series.to_owned(), value).is_none(),
                "{line} twice"
            );
        }
        page
    }

    fn get(&self, series: &str) -> f64 {
        *self
            .samples
            .get(series)
            .unwrap_or_else(|| panic!("there is no {series} in {:#?}", self.samples.keys()))
    }

    /// Buckets of each histogram grow, and the last is the count.
    fn check_histograms(&self) {
        let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (series, value) in &self.samples {
            let (name, labels) = labels(series);
            let Some(name) = name.strip_suffix("_bucket") else {
                continue;
            };
            let (le, others): (Vec<_>, Vec<_>) = labels.into_iter().partition(|(label, _)| *label == "le");
            let end: f64 = le[0].1.parse().expect("an end is a number");
            let others: Vec<_> = others
                .iter()
                .map(|(name, value)| format!("{name}=\"{value}\""))
                .collect();
            let key = format!("{name}_count{{{}}}", others.join(","));
            buckets.entry(key).or_default().push((end, *value));
        }
        assert!(!buckets.is_empty());
        for (count, mut buckets) in buckets {
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            assert!(buckets.is_sorted_by(|one, other| one.0 < other.0 && one.1 <= other.1));
            assert_eq!(buckets.last().copied(), Some((f64::INFINITY, self.get(&count))));
        }
    }
}

fn request(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn scrape(address: SocketAddr) -> Page {
    let answer = request(address, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8"));
    assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())));
    Page::parse(body)
}

const NQN: &str = "nqn.2026-11.io.redhare:measured";
const HOST: &str = "nqn.2026-11.io.redhare:host";

async fn commands(target: &Arc<Target>) {
    let device = MemoryDevice::new(4096, BlockCount(64)).unwrap();
    let subsystem = Subsystem::new(NQN.parse::<Nqn>().unwrap(), "1", "Redhare", Hosts::Any);
    subsystem
        .add_namespace(Namespace {
            nsid: 7,
            uuid: [7; 16],
            device: Arc::new(device) as Arc<dyn BlockDevice>,
        })
        .unwrap();
    target.add_subsystem(subsystem);
    let server =
        fabrics::target::serve(target.clone(), "127.0.0.1:0".parse().unwrap(), Options::default()).unwrap();
    let options = ConnectOptions::new(
        server.address(),
        NQN.parse().unwrap(),
        HOST.parse().unwrap(),
        [3; 16],
    );
    let controller = Controller::connect(options).await.unwrap();
    let channel = controller.open_namespace(7).await.unwrap();
    let source = Source {
        target: target.clone(),
        reactors: vec![CoreHandle::current()],
    };
    let metrics = serve("127.0.0.1:0".parse().unwrap(), source).unwrap();
    let address = metrics.address();
    let pool = BufferPool::current();
    for _ in 0..5 {
        let data = pool.try_allocate(8192).unwrap().freeze();
        channel.write(Lba(1), data).await.unwrap();
    }
    for _ in 0..3 {
        channel
            .read(Lba(0), pool.try_allocate(4096).unwrap())
            .await
            .0
            .unwrap();
    }
    channel.flush().await.unwrap();
    let beyond = channel.geometry().blocks;
    let outside = pool.try_allocate(4096).unwrap();
    // Refused by our own initiator or by the target, as they like: the count below says which.
    assert!(channel.read(Lba(beyond.0), outside).await.0.is_err());
    // The last answer is counted when the socket has taken it, which the host may see first.
    time::sleep(Duration::from_millis(20)).await;
    let page = scrape(address);
    page.check_histograms();
    let namespace = |metric: &str, rest: &str| {
        page.get(&format!(
            "redhare_namespace_{metric}{{subsystem=\"{NQN}\",nsid=\"7\",{rest}}}"
        ))
    };
    let refused = namespace("errors_total", "status_type=\"generic\"");
    let commands =
        ["read", "write", "other"].map(|kind| namespace("commands_total", &format!("operation=\"{kind}\"")));
    assert_eq!(commands, [3.0 + refused, 5.0, 1.0]);
    assert_eq!(namespace("bytes_total", "operation=\"read\""), 3.0 * 4096.0);
    assert_eq!(namespace("bytes_total", "operation=\"write\""), 5.0 * 8192.0);
    assert_eq!(
        namespace("command_duration_seconds_count", "operation=\"write\""),
        5.0
    );
    let took = namespace("command_duration_seconds_sum", "operation=\"write\"");
    assert!(took > 0.0 && took < 5.0, "{took}");
    let total = format!("redhare_subsystem_commands_total{{subsystem=\"{NQN}\",operation=\"write\"}}");
    assert_eq!(page.get(&total), 5.0);
    let queue = page.samples.keys().find(|series| {
        series.starts_with("redhare_queue_commands_total") && series.contains("operation=\"write\"")
    });
    let queue = queue.expect("the host has a queue");
    assert!(
        queue.contains(&format!("host=\"{HOST}\"")) && queue.contains("reactor=\"0\""),
        "{queue}"
    );
    assert_eq!(page.get(queue), 5.0);
    // The same commands by queue, by reactor and by subsystem, each with its times.
    let count = queue.replace("_commands_total", "_command_duration_seconds_count");
    assert_eq!(page.get(&count), 5.0);
    for owner in [
        "reactor{reactor=\"0\"".to_owned(),
        format!("subsystem{{subsystem=\"{NQN}\""),
    ] {
        let (owner, label) = owner.split_once('{').unwrap();
        let series = format!("redhare_{owner}_command_duration_seconds");
        assert_eq!(
            page.get(&format!("{series}_count{{{label},operation=\"write\"}}")),
            5.0
        );
        assert_eq!(
            page.get(&format!("{series}_sum{{{label},operation=\"write\"}}")),
            took
        );
    }
    assert_eq!(
        page.get("redhare_reactor_commands_total{reactor=\"0\",operation=\"write\"}"),
        5.0
    );
    assert_eq!(page.get("redhare_reactor_io_queues{reactor=\"0\"}"), 1.0);
    assert_eq!(page.get("redhare_reactor_connections{reactor=\"0\"}"), 2.0);
    assert!(page.get("redhare_reactor_busy_seconds_total{reactor=\"0\"}") > 0.0);
    // While it polls it offers its processor, and may get it back late: that counts as polling.
    let idle = ["sleeping", "polling"]
        .map(|kind| page.get(&format!("redhare_reactor_{kind}_seconds_total{{reactor=\"0\"}}")));
    assert!(idle[0] > 0.0 && idle[0] + idle[1] >= 0.015, "{idle:?}");
    let sums = [
        "checked_blocks",
        "damaged_blocks",
        "repaired_blocks",
        "lost_blocks",
        "damaged_pages",
    ];
    for sum in sums.map(|sum| format!("redhare_checksum_{sum}_total")) {
        // Other tests of this process may count, too; a target of its own has no chunk copies.
        assert_eq!(page.kinds[&sum], "counter");
        assert!(page.get(&sum) >= 0.0 && TABLE.contains(&sum));
    }
    // A scrape never waits for the reactor, which stands still here while it waits for the scrape.
    assert!(request(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(request(address, "PUT /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    let head = request(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"));
    drop(metrics);
    assert!(TcpStream::connect(address).is_err(), "it ends when it is dropped");
}

#[test]
fn commands_are_counted_where_they_belong() {
    let target = Target::new();
    reactor::run(&reactor::Config::default(), commands(&target)).unwrap();
}

/// docs/metrics.md says how large a page of a hundred hosts is.
#[test]
fn a_page_of_many_queues_is_bounded() {
    let mut latencies: [Latencies; 3] = Default::default();
    latencies[..2]
        .iter_mut()
        .for_each(|kind| kind.buckets[8] = 123_456_789);
    let host_nqn = "nqn.2014-08.org.nvmexpress:uuid:6f1c8ab2-51e0-4b57-9d6e-1e6d3c4c2a10".to_owned();
    let queue = |number: u16| QueueMeasures {
        cntlid: number / 8,
        qid: number % 8 + 1,
        host_nqn: host_nqn.clone(),
        reactor: 0,
        commands: [123_456_789; 3],
        bytes: [1 << 40; 2],
        latencies: latencies.clone(),
    };
    let subsystem = SubsystemMeasures {
        nqn: NQN.to_owned(),
        controllers: 100,
        queues: (0..800).map(queue).collect(),
        namespaces: Vec::new(),
        total: Tally::default(),
    };
    let mut text = Text::default();
    queues(&mut text, &[subsystem]);
    let bytes = text.finish().len();
    println!("{bytes} bytes");
    assert!(bytes < 7 << 20, "{bytes}");
}

#[test]
fn an_address_that_is_taken_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let source = Source {
        target: Target::new(),
        reactors: Vec::new(),
    };
    let error = serve(address, source).unwrap_err().to_string();
    assert!(
        error.contains(&address.to_string()) && error.contains("choose a free port"),
        "{error}"
    );
}
