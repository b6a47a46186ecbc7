//! The rows of all measurements as one report.

use bench::report::Row;

use crate::output::{Failure, Output, table};

/// The table for people: each row, its bar, and whether it is met.
pub(super) fn describe(rows: &[Row]) -> String {
    let heading = ["WHAT", "VALUE", "UNIT", "BAR", ""];
    let mut cells = vec![heading.map(String::from).to_vec()];
    for row in rows {
        let met = match row.met {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        cells.push(vec![
            row.name.clone(),
            shown(row.value),
            row.unit.to_owned(),
            row.bar.map_or_else(|| "-".to_owned(), |bar| bar.to_string()),
            met.to_owned(),
        ]);
    }
    let mut text = table(&cells);
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        text.push_str(&format!("\n{}: {}", row.name, row.note));
    }
    text
}

/// Three digits that count.
fn shown(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "not measured".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Fails if a bar is missed, naming all that are. Results for machines name them already.
pub(super) fn check(rows: &[Row], output: &Output) -> Result<(), Failure> {
    let missed: Vec<String> = rows
        .iter()
        .filter(|row| row.is_missed())
        .map(|row| {
            let bar = row.bar.map(|bar| bar.to_string()).unwrap_or_default();
            format!("{} is {}, and must be {bar}", row.name, shown(row.value))
        })
        .collect();
    if missed.is_empty() {
        return Ok(());
    }
    if output.is_json() {
        return Err(Failure::reported());
    }
    Err(Failure::new(format!("bars missed: {}", missed.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::report::Bar;

    #[test]
    fn what_is_missed_is_named() {
        let rows = [
            Row::new("good", 1.5, "x", Some(Bar::AtLeast(1.0))),
            Row::new("bad", 250.0, "MiB", Some(Bar::Below(200.0))).with_note("why"),
            Row::new("free", 3.0, "x", None),
        ];
        let people = Output::new(false);
        assert!(check(&rows[..1], &people).is_ok());
        assert_eq!(check(&rows, &Output::new(true)).unwrap_err().to_string(), "");
        assert_eq!(
            check(&rows, &people).unwrap_err().to_string(),
            "bars missed: bad is 250, and must be < 200"
        );
        let text = describe(&rows);
        assert!(text.contains("bad   250    MiB   < 200  MISSED"), "{text}");
        assert!(text.ends_with("\nbad: why"), "{text}");
    }
}
