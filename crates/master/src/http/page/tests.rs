use super::super::example;
use super::*;

/// Whether each tag is closed by its like, and each attribute by its quote.
fn check_nesting(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page;
    while let Some((_, after)) = rest.split_once('<') {
        let (tag, after) = after.split_once('>').expect("a tag ends");
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        rest = after;
        let name = tag.split([' ', '\n']).next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "</{name}>"),
            None if matches!(name, "!doctype" | "meta" | "br") => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_cluster_is_shown_with_what_is_wrong_and_what_is_done_about_it() {
    let page = cluster(&StatusView::of(&example::answer()));
    check_nesting(&page);
    for part in [
        "<title>DEGRADED – Redhare</title>",
        "<meta http-equiv=\"refresh\" content=\"5\">",
        "<header class=\"degraded\"><h1>The cluster is DEGRADED</h1>",
        "3 of 16 chunks of ",
        "4 copies with 1 GiB are still to be made, about 12 min left",
        "<td>192.0.2.1:7400</td><td>leads</td>",
        "<td class=\"bad\">GONE</td>",
        "has 1 of 2 portals: node 02020202 has not been heard of",
        "the data path does not require proof yet",
        "<td class=\"good\">alive</td><td>1</td><td>1000 MiB</td><td>500 MiB</td><td>250 MiB, 25 %",
        "<i class=\"promised\" style=\"width:50%\"></i><i style=\"width:25%\"></i>",
        "<td class=\"bad\">gone</td>",
        "<td class=\"warn\">slow: ",
        "<td>81 µs</td><td>12 ms</td><td>/dev/nvme0n1</td>",
        "<td>data</td><td>1 GiB</td><td>-</td><td>ready</td><td>16</td><td>off</td><td class=\"good\">all copies in sync",
        "<td class=\"warn\">3 chunks lack a copy, about 12 min left; exported by 2 nodes; 02020202 is sent what it missed of 1 chunks, 3 MiB of 4 MiB left, about 2 s",
        // One of the four that were missed is there.
        "<span class=\"bar\"><i style=\"width:25%\"></i></span></span></td>",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[test]
fn what_the_cluster_says_is_text_wherever_it_stands() {
    let page = cluster(&StatusView::of(&example::answer()));
    let escaped = "&lt;b&gt;&quot;x\\\n&amp;&#39;";
    // Two nodes' addresses, a volume, a disk's trouble; and in the head what is said of volume and nodes and disk.
    assert!(page.matches(escaped).count() >= 7, "{page}");
    assert!(!page.contains("<b>") && !page.contains("\"x"), "{page}");
    let elsewhere = elsewhere(&Elsewhere {
        own: example::NAME.to_owned(),
        leader: Some(example::NAME.to_owned()),
        masters: Vec::new(),
    });
    check_nesting(&elsewhere);
    assert_eq!(elsewhere.matches(escaped).count(), 2, "{elsewhere}");
    let failure = failure(example::NAME);
    check_nesting(&failure);
    assert!(failure.contains(escaped) && !failure.contains("<b>"), "{failure}");
}

#[test]
fn a_page_needs_nothing_from_elsewhere_and_no_program() {
    let page = cluster(&StatusView::of(&example::answer()));
    for part in [
        "<script", "<link", "<img", "src=", "url(", "@import", "http://", "https://",
    ] {
        assert!(!page.contains(part), "{part} is in {page}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
}

#[test]
fn who_leads_is_said_where_it_is_known() {
    let said = |leader: Option<&str>| {
        elsewhere(&Elsewhere {
            own: "192.0.2.2:7400".to_owned(),
            leader: leader.map(str::to_owned),
            masters: Vec::new(),
        })
    };
    assert!(said(Some("192.0.2.1:7400")).contains("The master at <strong>192.0.2.1:7400</strong> leads"));
    assert!(said(None).contains("No master leads at present"));
}

#[test]
fn a_bar_is_never_longer_than_its_place() {
    assert_eq!(
        [
            percent(1, 3),
            percent(3, 2),
            percent(0, 0),
            percent(u64::MAX, u64::MAX)
        ],
        [33, 100, 0, 100]
    );
}
