//! Comparison with the answers that TPC publishes for scale factor 1.

use tpchgen::q_and_a::answers_sf1;

use crate::rows::{Cell, Rows};

/// Published values with decimals round to two of them, so they may be off by one of the second.
/// (The specification, clause 2.1.3.5, would allow 100 dollars in a sum and 1% in an average.)
const CENT: f64 = 0.01 + 1e-9;

/// Q17's published answer is off by more than rounding explains; ratios may be off by 1%.
const RATIO_TOLERANCE: f64 = 0.01;

/// Why `rows` are not the published answer of a query at scale factor 1; `None` when they are.
///
/// Rows are compared in the order in which they come: every query's ORDER BY is total on its
/// answer.
pub fn check_published_answer(number: usize, rows: &Rows) -> Option<String> {
    let answer = i32::try_from(number).ok().and_then(answers_sf1::answer);
    let answer = answer.expect("queries are numbered 1 to 22");
    let mut lines = answer.lines().filter(|line| !line.trim().is_empty());
    let columns = lines.next().map_or(0, |header| header.split('|').count());
    let published: Vec<Vec<&str>> = lines
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    if rows.columns.len() != columns || rows.rows.len() != published.len() {
        return Some(format!(
            "{} rows of {} columns, published are {} rows of {columns} columns",
            rows.rows.len(),
            rows.columns.len(),
            published.len()
        ));
    }
    let differs = |(row, expected): &(&Vec<Cell>, &Vec<&str>)| {
        !row.iter()
            .zip(*expected)
            .enumerate()
            .all(|(column, (cell, expected))| same_cell(number, column, cell, expected))
    };
    let (row, expected) = rows.rows.iter().zip(&published).find(differs)?;
    Some(format!("row {row:?}, published is {expected:?}"))
}

/// Integers and texts are equal exactly, numbers with a decimal point within a cent.
fn same_cell(query: usize, column: usize, cell: &Cell, expected: &str) -> bool {
    let text = cell.as_deref().unwrap_or("").trim();
    if text == expected {
        return true;
    }
    // The published list of Q11 lacks the last two digits of each key.
    if (query, column) == (11, 0) && text.len() > 2 {
        return &text[..text.len() - 2] == expected;
    }
    match (text.parse::<f64>(), expected.parse::<f64>()) {
        (Ok(value), Ok(expected)) if query == 17 => {
            (value - expected).abs() <= RATIO_TOLERANCE * expected
        }
        (Ok(value), Ok(number)) if expected.contains('.') => (value - number).abs() <= CENT,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{check_published_answer, same_cell};
    use crate::rows::Rows;

    #[test]
    fn cells_are_equal_within_a_cent_only_where_they_have_cents() {
        let cell = |text: &str| Some(String::from(text));
        assert!(same_cell(1, 1, &cell("25.5220058532573370"), "25.52"));
        assert!(same_cell(
            1,
            1,
            &cell("FRANCE                   "),
            "FRANCE"
        ));
        assert!(!same_cell(1, 1, &cell("25.54"), "25.52"));
        assert!(!same_cell(1, 1, &cell("1478494"), "1478493"));
        assert!(!same_cell(1, 1, &None, "1"));
    }

    #[test]
    fn a_wrong_answer_is_told() {
        let answer = |text: &str| Rows {
            columns: vec![(String::from("revenue"), false)],
            rows: vec![vec![Some(String::from(text))]],
        };
        assert_eq!(check_published_answer(6, &answer("123141078.2283")), None);
        assert!(check_published_answer(6, &answer("123141079.23")).is_some());
        let none = Rows {
            rows: Vec::new(),
            ..answer("")
        };
        assert!(check_published_answer(6, &none).unwrap().contains("0 rows"));
    }
}
