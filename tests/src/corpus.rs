//! The corpus of queries for the differential oracle; `corpus/README.md` describes its format.

use std::collections::BTreeMap;

/// Script that creates and fills the tables.
pub const SCHEMA: &str = include_str!("../corpus/schema.sql");

const QUERIES: &str = include_str!("../corpus/queries.sql");
const LOCAL: &str = include_str!("../corpus/local.txt");

/// One query with the lines of its header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Unique name.
    pub name: String,
    /// The order of the rows is determined.
    pub ordered: bool,
    /// Settings, name and value, for the query's transaction.
    pub settings: Vec<(String, String)>,
    /// Role as which it runs.
    pub role: Option<String>,
    /// One SELECT, without the semicolon.
    pub text: String,
}

impl Query {
    /// Statements that its transaction begins with.
    pub fn preamble(&self) -> Vec<String> {
        let quoted = |text: &str| text.replace('\'', "''");
        let settings = self.settings.iter().map(|(name, value)| {
            format!(
                "SELECT set_config('{}', '{}', true)",
                quoted(name),
                quoted(value)
            )
        });
        let role = self
            .role
            .iter()
            .map(|role| format!("SET LOCAL ROLE {role}"));
        settings.chain(role).collect()
    }

    /// Whether the text has `word` as a whole word.
    pub fn mentions(&self, word: &str) -> bool {
        self.text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|found| found == word)
    }
}

/// All queries of the corpus.
pub fn queries() -> Vec<Query> {
    parse(QUERIES)
}

/// Queries that are known not to be shipped, by name: the reason's code.
pub fn local() -> BTreeMap<String, String> {
    let lines = LOCAL
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once(' ') {
            Some((name, reason)) => (String::from(name), String::from(reason.trim())),
            None => panic!("local.txt has a line without a reason: {line}"),
        })
        .collect()
}

fn parse(script: &str) -> Vec<Query> {
    let mut queries: Vec<Query> = Vec::new();
    let mut ended = true;
    for line in script.lines() {
        if let Some(name) = line.strip_prefix("-- name:") {
            assert!(ended, "query before {name} does not end");
            queries.push(Query {
                name: String::from(name.trim()),
                ..Query::default()
            });
            ended = false;
            continue;
        }
        let Some(query) = queries.last_mut() else {
            continue;
        };
        if let Some(setting) = line.strip_prefix("-- set:") {
            let (name, value) = setting.split_once('=').expect("a setting has a value");
            query
                .settings
                .push((String::from(name.trim()), String::from(value.trim())));
        } else if let Some(role) = line.strip_prefix("-- role:") {
            query.role = Some(String::from(role.trim()));
        } else if line.trim() == "-- order: yes" {
            query.ordered = true;
        } else if !line.starts_with("--") && !line.trim().is_empty() {
            assert!(!ended, "text after the end of {}: {line}", query.name);
            ended = line.trim_end().ends_with(';');
            let line = line.trim_end();
            query
                .text
                .push_str(if ended { &line[..line.len() - 1] } else { line });
            query.text.push('\n');
        }
    }
    queries
}

#[cfg(test)]
mod tests {
    use super::{local, parse, queries};
    use std::collections::BTreeSet;

    #[test]
    fn a_header_is_read_with_its_query() {
        let found = parse(
            "-- comment\n-- name: a\n-- order: yes\n-- set: x = 1, 2\n-- role: r\nSELECT 1\n\
             -- note\nFROM t;\n-- name: b\nSELECT 2;\n",
        );
        assert_eq!(found.len(), 2);
        assert!(found[0].ordered && !found[1].ordered);
        assert_eq!(found[0].text, "SELECT 1\nFROM t\n");
        assert_eq!(
            found[0].preamble(),
            ["SELECT set_config('x', '1, 2', true)", "SET LOCAL ROLE r"]
        );
        assert!(found[0].mentions("t") && !found[0].mentions("FRO"));
    }

    #[test]
    fn names_are_unique_and_the_local_ones_exist() {
        let names: BTreeSet<String> = queries().into_iter().map(|query| query.name).collect();
        assert_eq!(names.len(), queries().len());
        assert!(local().keys().all(|name| names.contains(name)));
    }
}
