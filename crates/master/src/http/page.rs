//! The dashboard: one page without anything from elsewhere, which needs no JavaScript and asks again by itself.

use std::fmt::{Display, Write};

use foundation::ByteCount;

use crate::view::verdict::{Health, Verdict};
use crate::view::{
    MasterAwayRow, MasterRow, NodeRow, ReturningRow, StatusView, VolumeRow, about, describe_returning,
    describe_time, on_disks, short,
};

/// How long a page stands before the browser asks again.
const REFRESH_SECONDS: u32 = 5;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1d2126; --paper: #f6f7f9; --sheet: #fff; --line: #dde1e6; --faint: #5c6570;
  --good: #1a7f37; --warn: #9a6700; --bad: #c4281c; --used: #3b6fd4; --promised: #b9cdf3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --paper: #14171a; --sheet: #1d2125; --line: #343a41; --faint: #9aa4af;
    --good: #4ac26b; --warn: #d4a72c; --bad: #ff7b72; --used: #5b8def; --promised: #2f4470; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 80rem; margin: 0 auto; padding: 1.25rem; }
header, section { background: var(--sheet); border: 1px solid var(--line); border-radius: 6px; padding: .9rem 1.1rem; margin-bottom: 1rem; }
header { border-left: 6px solid var(--faint); }
header.healthy { border-left-color: var(--good); } header.degraded { border-left-color: var(--warn); }
header.critical { border-left-color: var(--bad); }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1rem; margin: 0 0 .5rem; }
header ul { list-style: none; margin: .6rem 0 0; padding: 0; } header li { padding-left: 1.3em; text-indent: -1.3em; }
p { margin: .3rem 0 0; } .faint { color: var(--faint); } footer { color: var(--faint); font-size: .85rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--faint); font-size: .85rem; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; } .good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
code { font-family: ui-monospace, monospace; font-size: .92em; }
.bar { display: block; position: relative; width: 9rem; height: .55rem; margin-top: .3rem; border-radius: 3px; background: var(--line); overflow: hidden; }
.bar i { position: absolute; inset: 0 auto 0 0; background: var(--used); } .bar i.promised { background: var(--promised); }
";

/// A page as it grows. What stands in the program goes in as it is, everything else is escaped.
#[derive(Default)]
struct Html(String);

impl Html {
    fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    fn text(&mut self, text: impl Display) -> &mut Self {
        write!(Escaped(&mut self.0), "{text}").expect("a string takes all that is written to it");
        self
    }

    /// A cell of a table.
    fn cell(&mut self, text: impl Display) -> &mut Self {
        self.raw("<td>").text(text).raw("</td>")
    }

    /// A cell whose colour says how it is meant.
    fn judged_cell(&mut self, judgement: &'static str, text: impl Display) -> &mut Self {
        self.raw("<td class=\"").raw(judgement).raw("\">");
        self.text(text).raw("</td>")
    }

    /// A UUID's beginning, the whole of it for who points at it.
    fn uuid_cell(&mut self, uuid: &str) -> &mut Self {
        self.raw("<td><code title=\"").text(uuid).raw("\">");
        self.text(short(uuid)).raw("</code></td>")
    }

    fn begin_table(&mut self, title: &'static str, heads: &[&'static str]) {
        self.raw("<section><h2>")
            .raw(title)
            .raw("</h2><div class=\"scroll\"><table><thead><tr>");
        for head in heads {
            self.raw("<th>").raw(head).raw("</th>");
        }
        self.raw("</tr></thead><tbody>\n");
    }

    fn end_table(&mut self) {
        self.raw("</tbody></table></div></section>\n");
    }

    fn list(&mut self, judgement: &'static str, mark: &'static str, lines: &[String]) {
        for line in lines {
            self.raw("<li class=\"")
                .raw(judgement)
                .raw("\">")
                .raw(mark)
                .raw(" ")
                .text(line)
                .raw("</li>\n");
        }
    }

    /// A bar that is full at `all`, with one part before another.
    fn bar(&mut self, front: u64, behind: u64, all: u64) -> &mut Self {
        self.raw("<span class=\"bar\">");
        if behind > 0 {
            self.raw("<i class=\"promised\" style=\"width:")
                .text(percent(behind, all))
                .raw("%\"></i>");
        }
        self.raw("<i style=\"width:")
            .text(percent(front, all))
            .raw("%\"></i></span>")
    }
}

/// Takes text and gives what a browser shows as that text, between tags and in attributes.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

fn percent(part: u64, all: u64) -> u128 {
    (u128::from(part) * 100 / u128::from(all.max(1))).min(100)
}

fn begin(title: impl Display) -> Html {
    let mut html = Html::default();
    html.raw("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.raw("<meta http-equiv=\"refresh\" content=\"")
        .text(REFRESH_SECONDS)
        .raw("\">\n");
    html.raw("<title>")
        .text(title)
        .raw("</title>\n<style>")
        .raw(STYLE)
        .raw("</style></head><body><main>\n");
    html
}

fn end(mut html: Html) -> String {
    html.raw("<footer>Redhare ").text(foundation::RELEASE);
    html.raw(" · asked anew every ").text(REFRESH_SECONDS);
    html.raw(" s · <a href=\"/metrics\">metrics</a></footer>\n</main></body></html>\n");
    html.0
}

/// What a master knows that does not lead.
pub(super) struct Elsewhere {
    /// By which this one is reached.
    pub(super) own: String,
    /// By which the one is reached that leads; none while nobody does.
    pub(super) leader: Option<String>,
    /// Those that live, as far as the store says.
    pub(super) masters: Vec<MasterRow>,
}

/// The page of a master that does not lead. Where the other one serves its page nobody has said.
pub(super) fn elsewhere(elsewhere: &Elsewhere) -> String {
    let mut html = begin("follows – Redhare");
    html.raw("<header><h1>This master follows</h1>\n<p>");
    match &elsewhere.leader {
        Some(leader) => html
            .raw("The master at <strong>")
            .text(leader)
            .raw("</strong> leads: its page, where it was started with --http, shows the cluster."),
        None => html.raw(
            "No master leads at present: nothing that fails is mended, and nothing can be changed. One that lives takes over within seconds.",
        ),
    };
    html.raw("</p>\n<p class=\"faint\">This is the master at ")
        .text(&elsewhere.own)
        .raw(".</p></header>\n");
    masters(&mut html, &elsewhere.masters, &[]);
    end(html)
}

/// The page while nothing can be shown.
pub(super) fn failure(why: &str) -> String {
    let mut html = begin("unknown – Redhare");
    html.raw("<header class=\"critical\"><h1>The cluster cannot be shown at present</h1>\n<p>");
    html.text(why).raw("</p></header>\n");
    end(html)
}

/// The page of the master that leads.
pub(super) fn cluster(view: &StatusView) -> String {
    let word = view.health.as_ref().map_or("unknown", Health::word);
    let mut html = begin(format_args!("{word} – Redhare"));
    html.raw("<header class=\"")
        .raw(match view.health.as_ref().map(|health| health.verdict) {
            Some(Verdict::Healthy) => "healthy",
            Some(Verdict::Degraded) => "degraded",
            Some(Verdict::Critical) => "critical",
            None => "",
        });
    html.raw("\"><h1>The cluster is ").text(word).raw("</h1>\n");
    let nothing = Vec::new();
    let health = view.health.as_ref();
    let (troubles, doing) = health.map_or((&nothing, &nothing), |health| (&health.troubles, &health.doing));
    let notes = health.map_or(&nothing, |health| &health.notes);
    if !troubles.is_empty() || !doing.is_empty() || !notes.is_empty() {
        let is_critical = health.is_some_and(|health| health.verdict == Verdict::Critical);
        html.raw("<ul>");
        html.list(if is_critical { "bad" } else { "warn" }, "!", troubles);
        html.list("", "&gt;", doing);
        html.list("", "·", notes);
        html.raw("</ul>\n");
    }
    html.raw("<p class=\"faint\">cluster <code>").text(&view.cluster);
    html.raw("</code>, revision ").text(view.revision);
    html.raw(", store ")
        .text(&view.store.place)
        .raw("</p></header>\n");
    masters(&mut html, &view.masters, &view.masters_away);
    store(&mut html, view);
    nodes(&mut html, view);
    disks(&mut html, view);
    volumes(&mut html, view);
    end(html)
}

fn masters(html: &mut Html, rows: &[MasterRow], away: &[MasterAwayRow]) {
    if rows.is_empty() && away.is_empty() {
        return;
    }
    html.begin_table("Masters", &["Address", "Role", "Since"]);
    for row in rows {
        html.raw("<tr>")
            .cell(&row.address)
            .cell(if row.leads { "leads" } else { "follows" });
        html.cell(about(row.since_seconds).trim_start_matches("about "))
            .raw("</tr>\n");
    }
    for row in away {
        let since = row.silent_seconds.map_or("?".to_owned(), about);
        html.raw("<tr>")
            .cell(&row.address)
            .judged_cell(if row.ended { "warn" } else { "bad" }, row.role());
        html.cell(since.trim_start_matches("about ")).raw("</tr>\n");
    }
    html.end_table();
}

fn store(html: &mut Html, view: &StatusView) {
    if view.store.members.is_empty() {
        return;
    }
    html.begin_table("Members of the metadata store", &["Address", "State", "Says"]);
    for row in &view.store.members {
        let (judgement, state) = if row.healthy {
            ("good", "healthy")
        } else {
            ("bad", "FAILED")
        };
        html.raw("<tr>")
            .cell(&row.address)
            .judged_cell(judgement, state)
            .cell(&row.said)
            .raw("</tr>\n");
    }
    html.end_table();
}

fn nodes(html: &mut Html, view: &StatusView) {
    let heads = [
        "Node", "Address", "Rack", "State", "Disks", "Capacity", "Promised", "Used", "Held",
    ];
    html.begin_table("Nodes", &heads);
    for row in &view.nodes {
        html.raw("<tr>").uuid_cell(&row.node).cell(&row.address);
        html.cell(row.rack.as_deref().unwrap_or("-"));
        html.judged_cell(node_judgement(row), row.describe_state())
            .cell(row.disks);
        html.cell(ByteCount(row.capacity_bytes))
            .cell(ByteCount(row.allocated_bytes));
        html.raw("<td>").text(ByteCount(row.used_bytes)).raw(", ");
        html.text(percent(row.used_bytes, row.capacity_bytes)).raw(" %");
        html.bar(row.used_bytes, row.allocated_bytes, row.capacity_bytes)
            .raw("</td>");
        html.cell(ByteCount(row.held_bytes)).raw("</tr>\n");
    }
    html.end_table();
}

fn node_judgement(row: &NodeRow) -> &'static str {
    match (row.alive, row.draining) {
        (true, false) => "good",
        (true, true) => "warn",
        (false, _) => "bad",
    }
}

fn disks(html: &mut Html, view: &StatusView) {
    let heads = ["Disk", "Node", "State", "Used", "Read", "99 % below", "Path"];
    html.begin_table("Disks", &heads);
    for row in view.nodes.iter().flat_map(|node| &node.disk_health) {
        html.raw("<tr>").uuid_cell(&row.uuid).uuid_cell(&row.node);
        let judgement = match (row.state, row.full) {
            ("ok", false) => "good",
            ("unknown", false) => "faint",
            ("slow", false) => "warn",
            _ => "bad",
        };
        html.raw("<td class=\"")
            .raw(judgement)
            .raw("\">")
            .text(row.describe_state());
        if !row.why.is_empty() {
            html.raw(": ").text(&row.why);
        }
        html.raw("</td><td>").text(ByteCount(row.used_bytes)).raw(" of ");
        html.text(ByteCount(row.capacity_bytes));
        html.bar(row.used_bytes, row.allocated_bytes, row.capacity_bytes)
            .raw("</td>");
        let sample = row.own_sample();
        let time = |microseconds: Option<u64>| microseconds.map_or("-".to_owned(), describe_time);
        html.cell(time(sample.map(|sample| sample.disk_us)));
        html.cell(time(sample.map(|sample| sample.disk_p99_us)));
        html.cell(&row.path).raw("</tr>\n");
    }
    html.end_table();
}

fn volumes(html: &mut Html, view: &StatusView) {
    let heads = [
        "Volume",
        "Size",
        "On disks",
        "State",
        "Chunks",
        "Checksums",
        "Health",
    ];
    html.begin_table("Volumes", &heads);
    for row in &view.volumes {
        html.raw("<tr>")
            .cell(&row.name)
            .cell(ByteCount(row.size_bytes))
            .cell(on_disks(row.disk_use));
        html.cell(row.state)
            .cell(row.chunks)
            .cell(if row.checksums { "on" } else { "off" });
        html.raw("<td class=\"")
            .raw(volume_judgement(row))
            .raw("\">")
            .text(row.describe_health());
        if row.lacking_copies > 0 {
            html.raw("<br>").text(row.lacking_copies).raw(" copies with ");
            html.text(ByteCount(row.lacking_bytes))
                .raw(" are still to be made");
        }
        row.returning
            .iter()
            .for_each(|returning| progress(html, returning));
        html.raw("</td></tr>\n");
    }
    html.end_table();
}

fn volume_judgement(row: &VolumeRow) -> &'static str {
    let crowded = if row.few_racks { 0 } else { row.crowded_chunks };
    match (
        row.state,
        row.waiting_chunks.max(row.roomless_chunks),
        row.degraded_chunks.max(crowded),
    ) {
        ("ready", 0, 0) => "good",
        ("ready", 0, _) => "warn",
        ("ready", ..) => "bad",
        _ => "faint",
    }
}

/// How far the copies on a node are that are sent what they have missed.
fn progress(html: &mut Html, row: &ReturningRow) {
    let sent = row.total_bytes.saturating_sub(row.left_bytes);
    html.raw("<span title=\"")
        .text(describe_returning(row))
        .raw("\">");
    html.bar(sent, 0, row.total_bytes).raw("</span>");
}

#[cfg(test)]
mod tests;
