//! Proved here, with the built binary on a terminal of its own (`script` of util-linux): an import shows how far it is while it
//! goes on, of a large file, too, and at the end that all is done; what is no terminal gets nothing of it.

use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use foundation::ByteCount;

/// Until something is on the terminal that must come.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// What the bar begins each of its states with: the line's beginning, and nothing on the line.
const NEW_STATE: &str = "\r\u{1b}[2K";

struct Place(tempfile::TempDir);

impl Place {
    /// With a volume.
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let whole = format!("file:{}", place.path("volume").display());
        place.run(&["format", &whole, "--size", "64MiB"]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn volume(&self, inside: &str) -> String {
        format!("file:{}:{inside}", self.path("volume").display())
    }

    /// No cluster is named, and none that may run on this machine is found.
    fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env_remove("REDHARE_CLUSTER")
            .env("XDG_STATE_HOME", self.0.path())
            .env("TERM", "xterm")
    }

    /// Runs a command without a terminal, which must succeed.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redhare"));
        command.arg("fs").args(arguments).stdin(Stdio::null());
        let output = self.environment(&mut command).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output
    }

    /// Starts one on a terminal of 120 columns; `more` is what the shell does with its input and output.
    fn on_terminal(&self, arguments: &[&str], more: &str) -> Terminal {
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let program = env!("CARGO_BIN_EXE_redhare");
        let line = format!(
            "stty rows 40 cols 120 && exec '{program}' fs {} {more}",
            words.join(" ")
        );
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]);
        self.environment(&mut command);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script is there (util-linux)");
        let mut screen = child.stdout.take().unwrap();
        let (sender, bytes) = channel();
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut some) {
                if sender.send(some[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal {
            child,
            bytes,
            seen: Vec::new(),
        }
    }
}

/// A terminal, and what was on it.
struct Terminal {
    child: Child,
    bytes: Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

impl Terminal {
    /// Waits until something that was asked for is there; what that is.
    fn until<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> T {
        let deadline = Instant::now() + SHOWN_WITHIN;
        loop {
            let text = String::from_utf8_lossy(&self.seen);
            if let Some(found) = find(&text) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.bytes.recv_timeout(left) {
                Ok(more) => self.seen.extend(more),
                Err(why) => panic!("it never came ({why}): {text:?}"),
            }
        }
    }

    /// All that was on it, once its program has ended well.
    fn ended(mut self) -> String {
        while let Ok(more) = self.bytes.recv_timeout(SHOWN_WITHIN) {
            self.seen.extend(more);
        }
        let status = self.child.wait().unwrap();
        let text = String::from_utf8_lossy(&self.seen).into_owned();
        assert!(status.success(), "{status}: {text:?}");
        text
    }
}

/// States of the bar of this work, oldest first.
fn states<'a>(text: &'a str, work: &str) -> Vec<&'a str> {
    let all = text.split(NEW_STATE).map(str::trim_end);
    all.filter(|state| state.split(' ').next() == Some(work))
        .collect()
}

/// How many files a state says are done.
fn files(state: &str) -> u64 {
    let before = state.split(" files (").next().unwrap();
    let number = before.split(' ').next_back().unwrap();
    let done = number.split('/').next().unwrap();
    done.parse()
        .unwrap_or_else(|_| panic!("no count of files: {state:?}"))
}

/// How many whole MiB the last state says are done; 0 while there are fewer.
fn mib(text: &str) -> u64 {
    let Some(state) = states(text, "import").pop() else {
        return 0;
    };
    let bytes = state.split("/s)  ").nth(1).unwrap_or_default();
    match bytes.split_once(" MiB (") {
        Some((number, _)) => number.parse::<f64>().unwrap() as u64,
        None => 0,
    }
}

/// A directory with 303 entries, itself included, whose files have 303,000 bytes and 8 MiB.
fn fill(source: &Path) {
    std::fs::create_dir(source).unwrap();
    for index in 0..298 {
        std::fs::write(source.join(format!("{index:03}")), vec![index as u8; 1000]).unwrap();
    }
    // A hole's bytes are passed over, a further name has none of its own.
    let sparse = std::fs::File::create(source.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    sparse.write_all_at(&[7; 5000], 3 << 20).unwrap();
    std::fs::write(source.join("large"), vec![3; 5000]).unwrap();
    std::fs::hard_link(source.join("large"), source.join("second name")).unwrap();
    symlink("large", source.join("link")).unwrap();
}

/// The same as a bar shows it at its end.
fn all_of_it() -> [String; 2] {
    let bytes = ByteCount((298 * 1000 + 5000) + (8 << 20)).to_string();
    let (number, unit) = bytes.split_once(' ').unwrap();
    [
        "303/303 files (".to_owned(),
        format!("{number}/{number} {unit} ("),
    ]
}

/// An archive of files of so many bytes.
fn archive(count: usize, size: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for index in 0..count {
        let bytes = vec![index as u8; size];
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder
            .append_data(&mut header, format!("{index:06}"), &bytes[..])
            .unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn a_terminal_sees_a_bar_that_ends_with_all() {
    let place = Place::new();
    let source = place.path("source");
    fill(&source);
    let arguments = ["import", source.to_str().unwrap(), &place.volume(""), "--verify"];
    // The second time all is there already, which is no less done.
    for _ in 0..2 {
        let text = place.on_terminal(&arguments, "").ended();
        let counts: Vec<u64> = states(&text, "import").into_iter().map(files).collect();
        assert!(!counts.is_empty(), "there was no bar: {text:?}");
        assert!(counts.is_sorted(), "it goes back: {text:?}");
        for work in ["commit", "verify"] {
            let last = *states(&text, work).last().unwrap_or(&"");
            let is_all = all_of_it().iter().all(|part| last.contains(part));
            assert!(is_all, "{work} {:?}: {last:?} of {text:?}", all_of_it());
            assert!(last.contains("/s)  ") && last.contains(" left"), "{last:?}");
            let full = last.contains('\u{2588}') && !last.contains('\u{2591}');
            assert!(full, "the bar is not full: {last:?}");
        }
        // It goes, and the result stays.
        let result = text.rsplit(NEW_STATE).next().unwrap();
        assert!(result.starts_with("imported 303 entries, "), "{text:?}");
        assert!(!result.contains('\u{1b}'), "{result:?}");
    }
}

#[test]
fn a_list_has_a_length_too() {
    let place = Place::new();
    let source = place.path("source");
    fill(&source);
    let list = place.path("list");
    std::fs::write(&list, "000\n001\nsparse\n").unwrap();
    let (from, volume, list) = (source.to_str().unwrap(), place.volume(""), list.to_str().unwrap());
    let text = place
        .on_terminal(&["import", from, &volume, "--files-from", list], "")
        .ended();
    let last = states(&text, "commit").pop().unwrap_or_default().to_owned();
    assert!(
        last.contains(" 3/3 files (") && last.contains("  8.0/8.0 MiB ("),
        "{last:?} of {text:?}"
    );
}

#[test]
fn an_archive_from_a_pipe_shows_how_far_it_is() {
    let place = Place::new();
    let pipe = place.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let input = format!("< '{}'", pipe.display());
    // Many files, and one that is long.
    for (inside, whole) in [("many", archive(2000, 500)), ("one", archive(1, 24 << 20))] {
        let mut terminal = place.on_terminal(&["import", "-", &place.volume(inside)], &input);
        let mut feed = std::fs::File::options().write(true).open(&pipe).unwrap();
        let (half, rest) = whole.split_at(whole.len() / 2);
        // It waits for the rest in the middle, and has shown what it has by then.
        feed.write_all(half).unwrap();
        match inside {
            "many" => {
                terminal.until(|text| {
                    let done = files(states(text, "import").last()?);
                    (900..1001).contains(&done).then_some(())
                });
            }
            _ => terminal.until(|text| (8..=12).contains(&mib(text)).then_some(())),
        }
        feed.write_all(rest).unwrap();
        drop(feed);
        let text = terminal.ended();
        let last = states(&text, "commit").pop().unwrap_or_default().to_owned();
        let count = if inside == "many" { "2000" } else { "1" };
        assert!(
            last.contains(&format!(" {count}/{count} files (")),
            "{last:?} of {text:?}"
        );
    }
}

#[test]
fn without_a_terminal_there_is_no_bar() {
    let place = Place::new();
    let source = place.path("source");
    fill(&source);
    let from = source.to_str().unwrap();
    let plain = place.run(&["import", from, &place.volume("a"), "--verify"]);
    let said = String::from_utf8(plain.stdout).unwrap();
    assert!(said.starts_with("imported 303 entries, "), "{said:?}");
    assert!(!said.contains(['\u{1b}', '\r']), "{said:?}");
    assert_eq!(String::from_utf8_lossy(&plain.stderr), "");
    let json = place.run(&["import", from, &place.volume("b"), "--json"]);
    let view: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(view["entries"], 303);
    assert_eq!(String::from_utf8_lossy(&json.stderr), "");

    // Who keeps the result in a file looks at the bar all the same, and it is not in the file.
    let file = place.path("result");
    let more = format!("> '{}'", file.display());
    let text = place
        .on_terminal(&["import", from, &place.volume("c"), "--json"], &more)
        .ended();
    assert!(!states(&text, "commit").is_empty(), "{text:?}");
    let view: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(view["entries"], 303);
}
