//! Query results as text, and how two of them are compared.
//!
//! Cells are compared as the text that PostgreSQL prints, so that every type works. Floating-point
//! columns get a relative tolerance, because parallel aggregation may add in any order.

use postgres::types::Type;
use postgres::{Client, Error, SimpleQueryMessage};

/// Two floats are equal when they differ by at most this part of the larger one.
pub const FLOAT_TOLERANCE: f64 = 1e-9;

/// How many differing rows a report shows of each kind.
const SHOWN_ROWS: usize = 10;

/// One cell; `None` is SQL's NULL.
pub type Cell = Option<String>;

/// The rows of one query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Column names and whether the column is float4 or float8.
    pub columns: Vec<(String, bool)>,
    /// The rows in the order in which they came.
    pub rows: Vec<Vec<Cell>>,
}

impl Rows {
    /// Runs a single row-returning statement in the simple protocol.
    ///
    /// The statement is also prepared (parsed, neither planned nor run) to learn column types.
    pub fn fetch(client: &mut Client, query: &str) -> Result<Self, Error> {
        let statement = client.prepare(query)?;
        let columns = statement
            .columns()
            .iter()
            .map(|column| {
                let is_float = matches!(*column.type_(), Type::FLOAT4 | Type::FLOAT8);
                (String::from(column.name()), is_float)
            })
            .collect();
        let mut rows = Vec::new();
        for message in client.simple_query(query)? {
            if let SimpleQueryMessage::Row(row) = message {
                let cells = (0..row.len()).map(|column| row.get(column).map(String::from));
                rows.push(cells.collect());
            }
        }
        Ok(Self { columns, rows })
    }

    /// Why `other` is not the same result as `self`, for a person to read; `None` when it is.
    ///
    /// Without `ordered` both are taken as multisets of rows.
    pub fn difference(&self, other: &Self, ordered: bool) -> Option<String> {
        if self.columns != other.columns {
            return Some(format!(
                "columns {:?} became {:?}",
                self.columns, other.columns
            ));
        }
        if ordered {
            self.ordered_difference(other)
        } else {
            self.multiset_difference(other)
        }
    }

    fn ordered_difference(&self, other: &Self) -> Option<String> {
        let unequal = (0..self.rows.len().min(other.rows.len()))
            .find(|&index| !self.same_row(&self.rows[index], &other.rows[index]));
        let counts = format!("{} rows became {} rows", self.rows.len(), other.rows.len());
        match unequal {
            Some(index) => Some(format!(
                "{counts}; row {index} differs first\n- {}\n+ {}",
                show_row(&self.rows[index]),
                show_row(&other.rows[index])
            )),
            None => (self.rows.len() != other.rows.len()).then_some(counts),
        }
    }

    fn multiset_difference(&self, other: &Self) -> Option<String> {
        let left = self.grouped();
        let right = other.grouped();
        let (mut missing, mut extra) = (Vec::new(), Vec::new());
        let (mut l, mut r) = (0, 0);
        while l < left.len() || r < right.len() {
            let left_end = group_end(&left, l);
            let right_end = group_end(&right, r);
            match (left.get(l), right.get(r)) {
                (Some((lk, _)), Some((rk, _))) if lk == rk => {
                    self.match_group(
                        &left[l..left_end],
                        &right[r..right_end],
                        &mut missing,
                        &mut extra,
                    );
                    (l, r) = (left_end, right_end);
                }
                (Some((lk, _)), other) if other.is_none_or(|(rk, _)| lk < rk) => {
                    missing.extend(left[l..left_end].iter().map(|(_, row)| *row));
                    l = left_end;
                }
                _ => {
                    extra.extend(right[r..right_end].iter().map(|(_, row)| *row));
                    r = right_end;
                }
            }
        }
        if missing.is_empty() && extra.is_empty() {
            return None;
        }
        let mut report = format!(
            "{} rows became {} rows; {} missing (-), {} extra (+)",
            self.rows.len(),
            other.rows.len(),
            missing.len(),
            extra.len()
        );
        for (sign, rows) in [('-', missing), ('+', extra)] {
            for row in rows.iter().take(SHOWN_ROWS) {
                report.push_str(&format!("\n{sign} {}", show_row(row)));
            }
        }
        Some(report)
    }

    /// The rows sorted by the text of their columns other than floats.
    fn grouped(&self) -> Vec<(Vec<&Cell>, &Vec<Cell>)> {
        let mut grouped: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                let exact = row
                    .iter()
                    .zip(&self.columns)
                    .filter(|(_, (_, float))| !float);
                (exact.map(|(cell, _)| cell).collect::<Vec<_>>(), row)
            })
            .collect();
        grouped.sort();
        grouped
    }

    /// Pairs the rows of two groups that agree in all columns but floats.
    fn match_group<'a>(
        &self,
        left: &[(Vec<&'a Cell>, &'a Vec<Cell>)],
        right: &[(Vec<&'a Cell>, &'a Vec<Cell>)],
        missing: &mut Vec<&'a Vec<Cell>>,
        extra: &mut Vec<&'a Vec<Cell>>,
    ) {
        let by_floats = |rows: &[(Vec<&'a Cell>, &'a Vec<Cell>)]| {
            let mut rows: Vec<&'a Vec<Cell>> = rows.iter().map(|(_, row)| *row).collect();
            rows.sort_by(|a, b| self.compare_floats(a, b));
            rows
        };
        let mut candidates = by_floats(right);
        for row in by_floats(left) {
            // Sorted alike, so the first candidate nearly always fits.
            match candidates
                .iter()
                .position(|candidate| self.same_row(row, candidate))
            {
                Some(index) => drop(candidates.remove(index)),
                None => missing.push(row),
            }
        }
        extra.extend(candidates);
    }

    fn compare_floats(&self, a: &[Cell], b: &[Cell]) -> std::cmp::Ordering {
        let floats = |row: &[Cell]| -> Vec<f64> {
            let columns = row
                .iter()
                .zip(&self.columns)
                .filter(|(_, (_, float))| *float);
            columns.map(|(cell, _)| as_float(cell)).collect()
        };
        let pairs = floats(a).into_iter().zip(floats(b));
        pairs
            .map(|(x, y)| x.total_cmp(&y))
            .find(|order| order.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    }

    fn same_row(&self, a: &[Cell], b: &[Cell]) -> bool {
        a.iter()
            .zip(b)
            .zip(&self.columns)
            .all(|((x, y), (_, is_float))| {
                x == y
                    || (*is_float && x.is_some() && y.is_some() && close(as_float(x), as_float(y)))
            })
    }
}

fn group_end(rows: &[(Vec<&Cell>, &Vec<Cell>)], start: usize) -> usize {
    rows[start..]
        .iter()
        .take_while(|(key, _)| *key == rows[start].0)
        .count()
        + start
}

/// PostgreSQL prints `NaN`, `Infinity` and `-Infinity`, all of which Rust reads.
fn as_float(cell: &Cell) -> f64 {
    cell.as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(f64::NAN)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= FLOAT_TOLERANCE * a.abs().max(b.abs())
}

fn show_row(row: &[Cell]) -> String {
    let cells: Vec<&str> = row
        .iter()
        .map(|cell| cell.as_deref().unwrap_or("NULL"))
        .collect();
    cells.join(" | ")
}

#[cfg(test)]
mod tests {
    use super::Rows;

    fn rows(floats: &[bool], rows: &[&[&str]]) -> Rows {
        let cell = |text: &&str| (*text != "NULL").then(|| String::from(*text));
        Rows {
            columns: floats
                .iter()
                .map(|float| (String::from("c"), *float))
                .collect(),
            rows: rows
                .iter()
                .map(|row| row.iter().map(cell).collect())
                .collect(),
        }
    }

    #[test]
    fn order_counts_only_when_asked() {
        let a = rows(&[false], &[&["1"], &["2"], &["2"]]);
        let b = rows(&[false], &[&["2"], &["1"], &["2"]]);
        assert_eq!(a.difference(&b, false), None);
        assert!(
            a.difference(&b, true)
                .unwrap()
                .contains("row 0 differs first")
        );
    }

    #[test]
    fn a_duplicate_is_a_difference() {
        let a = rows(&[false], &[&["1"], &["2"]]);
        let b = rows(&[false], &[&["1"], &["2"], &["2"]]);
        assert!(a.difference(&b, false).unwrap().contains("1 extra"));
        assert!(b.difference(&a, false).unwrap().contains("1 missing"));
        assert!(
            a.difference(&b, true)
                .unwrap()
                .contains("2 rows became 3 rows")
        );
    }

    #[test]
    fn a_null_is_not_an_empty_text() {
        let a = rows(&[false], &[&["NULL"]]);
        assert!(a.difference(&rows(&[false], &[&[""]]), false).is_some());
        assert!(a.difference(&rows(&[false], &[&["NULL"]]), false).is_none());
    }

    #[test]
    fn floats_have_a_tolerance_and_other_columns_do_not() {
        let digits = [
            &["a", "0.30000000000000004"][..],
            &["a", "7"],
            &["b", "NaN"],
        ];
        let other = [&["b", "NaN"][..], &["a", "7"], &["a", "0.3"]];
        let (a, b) = (rows(&[false, true], &digits), rows(&[false, true], &other));
        assert_eq!(a.difference(&b, false), None);
        let (a, b) = (
            rows(&[false, false], &digits),
            rows(&[false, false], &other),
        );
        assert!(a.difference(&b, false).is_some());
        let far = rows(&[true], &[&["1.0"]]);
        assert!(
            far.difference(&rows(&[true], &[&["1.00000001"]]), false)
                .is_some()
        );
        assert!(
            far.difference(&rows(&[true], &[&["NULL"]]), false)
                .is_some()
        );
    }
}
