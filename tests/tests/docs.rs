//! What the documentation says is what the code does.

use parallel_replicas_core::reason::Reason;
use parallel_replicas_tests::{Cluster, PRIMARY};
use std::path::Path;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(path).expect("document can be read")
}

/// Cells of the Markdown table rows whose first cell is `code`.
fn rows(text: &str) -> Vec<Vec<String>> {
    text.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned())
                .collect()
        })
        .collect()
}

#[test]
fn the_page_of_reasons_is_complete() {
    let documented = rows(&document("docs/reasons.md"));
    let expected: Vec<Vec<String>> = Reason::ALL
        .iter()
        .map(|reason| {
            vec![
                format!("`{}`", reason.code()),
                reason.text().to_owned(),
                reason.hint().to_owned(),
            ]
        })
        .collect();
    assert_eq!(documented, expected);
}

/// Every setting is in README.md or docs/query-queue.md with its default, and nothing else is.
#[test]
fn the_readme_lists_the_settings_with_their_defaults() {
    let cluster = Cluster::builder().start();
    let mut client = cluster.connect(PRIMARY);
    let mut actual: Vec<(String, String)> = client
        .query(
            "SELECT name, current_setting(name) FROM pg_settings
             WHERE name LIKE '%parallel_replicas%' AND name <> 'shared_preload_libraries'",
            &[],
        )
        .expect("settings")
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    actual.sort();
    let mut documented: Vec<(String, String)> = rows(&document("README.md"))
        .into_iter()
        .chain(rows(&document("docs/query-queue.md")))
        .filter(|cells| cells.len() == 3 && cells[0].contains("parallel_replicas"))
        .map(|cells| {
            (
                cells[0].trim_matches('`').to_owned(),
                cells[1].trim_matches('`').to_owned(),
            )
        })
        .collect();
    documented.sort();
    assert_eq!(documented, actual);
}

/// The page about clusters has the session settings of the choice with their defaults.
#[test]
fn the_page_of_clusters_lists_its_settings() {
    let cluster = Cluster::builder().start();
    let mut client = cluster.connect(PRIMARY);
    let documented = rows(&document("docs/clusters.md"));
    for row in client
        .query(
            "SELECT name, current_setting(name) FROM pg_settings
             WHERE name ~ '^(load_balancing|distributed_replica_)'",
            &[],
        )
        .expect("settings")
    {
        let (name, default): (String, String) = (row.get(0), row.get(1));
        let expected = [format!("`{name}`"), format!("`{default}`")];
        assert!(
            documented.iter().any(|cells| cells[..2] == expected),
            "{expected:?}"
        );
    }
}

/// The SQL of the page about discovery can be executed as it stands.
#[test]
fn the_sql_of_the_page_of_discovery_works() {
    let cluster = Cluster::builder().start();
    let page = document("docs/discovery.md");
    let blocks: Vec<&str> = page
        .split("```sql\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        cluster.psql(PRIMARY, block);
    }
}
