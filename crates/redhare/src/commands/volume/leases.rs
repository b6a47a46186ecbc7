//! `redhare volume leases`.

use clap::Args;
use master::{Client, v1};

use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output, table};

pub(super) const EXAMPLES: &str = "Example:\n  redhare volume leases data\n\nOne program at a time writes the file system of a volume, under a lease of 30 s that it renews; \
    --take-over (of redhare fs mount, import, clone and compact) asks it to hand over. What a reader's lease holds is not used again until it goes on or ends.";

#[derive(Args)]
pub(super) struct LeasesArguments {
    /// The volume's name
    name: String,
}

#[derive(serde::Serialize)]
struct WriterView {
    holder: String,
    /// Above that of every writer before.
    token: u64,
    remaining_seconds: f64,
    /// Who asks for it; null if nobody does.
    wanted_by: Option<String>,
}

#[derive(serde::Serialize)]
struct ReaderView {
    holder: String,
    /// 0: it has just begun, and holds everything.
    generation: u64,
    remaining_seconds: f64,
}

#[derive(serde::Serialize)]
struct LeasesView {
    volume: String,
    writer: Option<WriterView>,
    readers: Vec<ReaderView>,
    /// The oldest state that is read; null without readers.
    oldest_generation: Option<u64>,
}

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

fn view(volume: String, shown: v1::ShowLeasesResponse) -> LeasesView {
    let writer = |writer: v1::WriterLease| WriterView {
        holder: writer.holder,
        token: writer.token,
        remaining_seconds: seconds(writer.remaining_ms),
        wanted_by: Some(writer.wanted_by).filter(|who| !who.is_empty()),
    };
    let reader = |reader: v1::ReaderLease| ReaderView {
        holder: reader.holder,
        generation: reader.generation,
        remaining_seconds: seconds(reader.remaining_ms),
    };
    LeasesView {
        volume,
        writer: shown.writer.map(writer),
        readers: shown.readers.into_iter().map(reader).collect(),
        oldest_generation: shown.oldest_generation,
    }
}

fn describe(view: &LeasesView) -> String {
    let mut lines = vec![match &view.writer {
        Some(writer) => format!(
            "volume {}: written by {}, whose lease has {:.0} s left",
            view.volume, writer.holder, writer.remaining_seconds
        ),
        None => format!("volume {}: nobody writes it", view.volume),
    }];
    let wanted = view.writer.as_ref().and_then(|writer| writer.wanted_by.as_ref());
    lines.extend(wanted.map(|who| format!("{who} asks for it, and gets it after the next commit")));
    if view.readers.is_empty() {
        lines.push("nobody reads it".to_owned());
        return lines.join("\n");
    }
    let row = |reader: &ReaderView| {
        let state = match reader.generation {
            0 => "all".to_owned(),
            generation => generation.to_string(),
        };
        vec![
            reader.holder.clone(),
            state,
            format!("{:.0}", reader.remaining_seconds),
        ]
    };
    let mut rows = vec![
        ["READER", "FROM COMMIT", "SECONDS LEFT"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(view.readers.iter().map(row));
    lines.push(table(&rows));
    lines.join("\n")
}

pub(super) fn run(
    cluster: &ClusterArguments,
    arguments: LeasesArguments,
    output: &Output,
) -> Result<(), Failure> {
    let LeasesArguments { name } = arguments;
    let request = v1::ShowVolumeRequest { name: name.clone() };
    let shown = cluster.call(|client: Client| async move { client.show_volume(request).await })?;
    let volume = shown.volume.map_or(0, |volume| volume.number);
    let request = v1::ShowLeasesRequest { volume };
    let shown = cluster.call(|client: Client| async move { client.show_leases(request).await })?;
    let view = view(name, shown);
    output.print(&view, || describe(&view));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_who_asks_and_who_reads_is_said() {
        let lease = v1::WriterLease {
            holder: "one".to_owned(),
            token: 7,
            remaining_ms: 21_400,
            wanted_by: "two".to_owned(),
            ..Default::default()
        };
        let reader = v1::ReaderLease {
            holder: "three".to_owned(),
            generation: 12,
            remaining_ms: 60_000,
        };
        let shown = v1::ShowLeasesResponse {
            writer: Some(lease),
            readers: vec![reader],
            oldest_generation: Some(12),
        };
        let text = describe(&view("data".to_owned(), shown));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "volume data: written by one, whose lease has 21 s left");
        assert_eq!(lines[1], "two asks for it, and gets it after the next commit");
        assert!(lines[3].starts_with("three") && lines[3].contains("12"), "{text}");
        let nobody = describe(&view("data".to_owned(), v1::ShowLeasesResponse::default()));
        assert_eq!(nobody, "volume data: nobody writes it\nnobody reads it");
    }
}
