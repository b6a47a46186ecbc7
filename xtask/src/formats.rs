//! Every format on disk or wire has its table in `docs/formats/`.

use std::path::Path;

/// A crate (its directory below `crates/`) that defines a format, and the page that holds the
/// table. A crate that does not exist yet waits.
const PAGES: &[(&str, &str)] = &[
    ("blobstore", "docs/formats/blobstore.md"),
    ("volume", "docs/formats/peer.md"),
    ("volume", "docs/formats/checksums.md"),
    ("volume", "docs/formats/chunk-record.md"),
    ("volume", "docs/formats/volume-geometry.md"),
    ("control", "docs/formats/store.md"),
    ("fabrics", "docs/formats/reservation.md"),
    ("packfs", "docs/formats/packfs.md"),
    ("zoned", "docs/formats/zoned.md"),
];

/// Columns a table of a format has at least.
const COLUMNS: &[&str] = &["offset", "length", "field", "meaning"];

/// Every violation, as text for a person.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for (owner, page) in PAGES {
        if !root.join("crates").join(owner).join("Cargo.toml").exists() {
            continue;
        }
        if !root.join(page).exists() {
            found.push(format!(
                "crates/{owner} defines a format, but {page} does not exist; write its tables there with the columns \
                 {}",
                COLUMNS.join(", ")
            ));
        }
    }
    let directory = root.join("docs/formats");
    if !directory.exists() {
        return Ok(found);
    }
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", directory.display());
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(cannot)? {
        pages.push(entry.map_err(cannot)?.path());
    }
    pages.sort();
    for page in pages {
        let name = page
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !name.ends_with(".md") || name == "README.md" {
            continue;
        }
        if !has_table(&std::fs::read_to_string(&page).map_err(cannot)?) {
            found.push(format!(
                "docs/formats/{name} has no table with the columns {}; describe the format by one",
                COLUMNS.join(", ")
            ));
        }
    }
    Ok(found)
}

/// Whether the Markdown has a table with all the columns and at least one row.
fn has_table(markdown: &str) -> bool {
    let lines: Vec<&str> = markdown.lines().map(str::trim).collect();
    lines.windows(3).any(|window| {
        let heads: Vec<String> = cells(window[0]).map(str::to_lowercase).collect();
        let is_head = COLUMNS
            .iter()
            .all(|column| heads.iter().any(|head| head.split(' ').next() == Some(column)));
        let is_rule =
            window[1].starts_with('|') && window[1].chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
        is_head && is_rule && window[2].starts_with('|')
    })
}

fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.trim_matches('|').split('|').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_all_columns_and_a_row() {
        assert!(has_table(
            "# A\n\n| offset | length | field | meaning | version |\n|---|---:|---|---|---|\n| 0 | 8 | magic | x | 1 |\n"
        ));
        assert!(has_table(
            "| Offset (bytes) | Length | Field | Meaning |\n| --- | --- | --- | --- |\n| 0 | 8 | a | b |"
        ));
        assert!(!has_table(
            "| offset | length | field |\n|---|---|---|\n| 0 | 8 | magic |"
        ));
        assert!(!has_table(
            "| offset | length | field | meaning |\n|---|---|---|---|\n"
        ));
        assert!(!has_table("offset length field meaning\n\ntext"));
    }

    #[test]
    fn a_crate_with_a_format_needs_its_page() {
        let root = std::env::temp_dir().join(format!("redhare-xtask-formats-{}", std::process::id()));
        std::fs::create_dir_all(root.join("crates/blobstore")).unwrap();
        assert!(
            violations(&root).unwrap().is_empty(),
            "a directory without a manifest is no crate"
        );
        std::fs::write(root.join("crates/blobstore/Cargo.toml"), "").unwrap();
        let missing = violations(&root).unwrap();
        std::fs::create_dir_all(root.join("docs/formats")).unwrap();
        std::fs::write(root.join("docs/formats/blobstore.md"), "nothing").unwrap();
        let empty = violations(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(missing.len(), 1);
        assert!(missing[0].starts_with("crates/blobstore defines a format, but docs/formats/blobstore.md"));
        assert_eq!(empty.len(), 1);
        assert!(empty[0].starts_with("docs/formats/blobstore.md has no table"));
    }
}
