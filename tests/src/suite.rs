//! Reading what PostgreSQL's regression suite printed: results whose rows may stand in any order,
//! differences statement by statement, and the list of those that are known.

use std::fs;
use std::path::Path;
use std::process::Command;

const KNOWN: &str = include_str!("../suite/known.txt");

/// One place at which the outputs of a test differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// Name of the test.
    pub test: String,
    /// The statement, with what stands before it since the result before, and its result: the lines of a
    /// unified diff.
    pub text: String,
}

/// A difference that is known, with the reason why it is none of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// `off` or `forced`: the run in which it appears.
    pub run: String,
    /// Name of the test.
    pub test: String,
    /// Text that the statement, or its result, has.
    pub text: String,
    /// For people.
    pub reason: String,
}

impl Known {
    /// Whether this is the difference of `hunk` in the comparison `run`.
    pub fn explains(&self, run: &str, hunk: &Hunk) -> bool {
        self.run == run && self.test == hunk.test && hunk.text.contains(&self.text)
    }
}

/// The list in `suite/known.txt`.
pub fn known() -> Vec<Known> {
    parse_known(KNOWN)
}

fn parse_known(list: &str) -> Vec<Known> {
    list.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let fields: Vec<&str> = line.split(" | ").map(str::trim).collect();
            let [run, test, text, reason] = fields[..] else {
                panic!("known.txt has a line without four fields: {line}");
            };
            Known {
                run: String::from(run),
                test: String::from(test),
                text: String::from(text),
                reason: String::from(reason),
            }
        })
        .collect()
}

/// A test's output with the rows of each result sorted, as psql and isolationtester print them:
/// heading, line of dashes, rows, number of rows.
pub fn with_sorted_rows(output: &str) -> String {
    let mut sorted = String::with_capacity(output.len());
    let mut lines = output.lines().peekable();
    let mut heading = "";
    while let Some(line) = lines.next() {
        sorted.push_str(line);
        sorted.push('\n');
        let above = std::mem::replace(&mut heading, line);
        if !is_rule(line) || above.is_empty() || above.starts_with("--") {
            continue;
        }
        let mut rows = Vec::new();
        while let Some(row) = lines.next_if(|next| !next.is_empty() && !is_row_count(next)) {
            rows.push(row);
        }
        // The description of a table has no number of rows, and its lines keep their order.
        if lines.peek().is_some_and(|end| is_row_count(end)) {
            rows.sort_unstable();
        }
        for row in rows {
            sorted.push_str(row);
            sorted.push('\n');
        }
    }
    sorted
}

/// The line between heading and rows.
fn is_rule(line: &str) -> bool {
    line.contains('-') && line.chars().all(|c| matches!(c, '-' | '+'))
}

fn is_row_count(line: &str) -> bool {
    let number = line.strip_prefix('(').and_then(|rest| {
        rest.strip_suffix(" rows)")
            .or_else(|| rest.strip_suffix(" row)"))
    });
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// The results of statements in which all tests of two folders differ, rows in any order.
pub fn compare(left: &Path, right: &Path) -> Vec<Hunk> {
    let mut names: Vec<String> = fs::read_dir(left)
        .expect("the folder of results can be read")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".out"))
        .collect();
    names.sort_unstable();
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut hunks = Vec::new();
    for name in names {
        let sides = [left, right].map(|folder| read(&folder.join(&name)));
        if sides[0] == sides[1] {
            continue;
        }
        let files = [0, 1].map(|side| {
            let file = scratch.path().join(format!("{side}-{name}"));
            fs::write(&file, with_sorted_rows(&sides[side])).expect("a file can be written");
            file
        });
        let output = Command::new("diff")
            // The whole file as context.
            .args(["-U", "1000000"])
            .args(&files)
            .output()
            .expect("diff can be run");
        let test = name.trim_end_matches(".out");
        hunks.extend(hunks_of(test, &String::from_utf8_lossy(&output.stdout)));
    }
    hunks
}

/// A result ends with its number of rows, or an empty line where it has none.
fn hunks_of(test: &str, diff: &str) -> Vec<Hunk> {
    let mut hunks = Vec::new();
    let (mut text, mut differs) = (String::new(), false);
    // Without the names of the files, and `@@`.
    let mut lines = diff.lines().skip(3).peekable();
    let is_change = |line: &str| line.starts_with(['+', '-']);
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        differs |= is_change(line);
        let output = line.get(1..).unwrap_or_default();
        let ends = output.is_empty() || is_row_count(output);
        let next_is_change = lines.peek().is_some_and(|next| is_change(next));
        if ends && !next_is_change || lines.peek().is_none() {
            let text = std::mem::take(&mut text);
            if std::mem::take(&mut differs) {
                hunks.push(Hunk {
                    test: String::from(test),
                    text,
                });
            }
        }
    }
    hunks
}

/// Outputs may hold bytes of any encoding.
fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Hunk, hunks_of, known, parse_known, with_sorted_rows};

    #[test]
    fn rows_are_sorted_within_their_result_only() {
        let output = "SELECT b FROM t;\n b \n---\n 2\n 1\n(2 rows)\n\nz\na\n a | b \n---+---\n 3 | \
                      4\n 3 | 3\n(2 rows)\n";
        assert_eq!(
            with_sorted_rows(output),
            "SELECT b FROM t;\n b \n---\n 1\n 2\n(2 rows)\n\nz\na\n a | b \n---+---\n 3 | 3\n 3 | \
             4\n(2 rows)\n"
        );
    }

    #[test]
    fn comments_and_descriptions_keep_their_order() {
        let output = "--\n-- text\n--\nSELECT 2;\nSELECT 1;\n a \n---\n 1\n(1 row)\n\n";
        assert_eq!(with_sorted_rows(output), output);
        let output = "\\d t\n Column | Type \n--------+------\n b | int\n a | int\nIndexes:\n\nSELECT \
                      1;\n a \n---\n 1\n(1 row)\n";
        assert_eq!(with_sorted_rows(output), output);
    }

    #[test]
    fn a_diff_is_cut_into_statements() {
        let diff = "--- a\n+++ b\n@@ -1 +1 @@\n SELECT 1;\n a \n ---\n 1\n (1 row)\n \n SELECT 2;\n a \n\
                    \x20---\n-2\n-(1 row)\n+3\n+4\n+(2 rows)\n \n SELECT 5;\n-ERROR\n+error\n";
        let found = hunks_of("select", diff);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].test, "select");
        assert_eq!(
            found[0].text,
            " SELECT 2;\n a \n ---\n-2\n-(1 row)\n+3\n+4\n+(2 rows)\n"
        );
        assert_eq!(found[1].text, " SELECT 5;\n-ERROR\n+error\n");
    }

    #[test]
    fn a_known_difference_is_told_by_run_test_and_text() {
        let list = parse_known("# comment\noff | select | b | because\n");
        let hunk = Hunk {
            test: String::from("select"),
            text: String::from("+b"),
        };
        assert!(list[0].explains("off", &hunk));
        assert!(!list[0].explains("forced", &hunk));
        assert!(known().iter().all(|entry| !entry.reason.is_empty()));
    }
}
