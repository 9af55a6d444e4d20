//! The documentation's table of what of each TPC-H query replicas execute is what EXPLAIN says.

use std::fmt::Write as _;
use std::path::Path;

use parallel_replicas_tests::tpch::{self, Indexes};
use parallel_replicas_tests::{Cluster, PRIMARY};
use postgres::Client;

/// What stands on a line of a plan.
struct Line {
    indent: usize,
    /// Name of the node, without the table that it reads.
    node: String,
    table: Option<String>,
}

fn line(text: &str) -> Option<Line> {
    let indent = text.len() - text.trim_start().len();
    let node = text.trim_start();
    let node = match node.strip_prefix("->  ") {
        Some(node) => node,
        // The first line is a node, too; all others without an arrow are properties.
        None if indent == 0 => node,
        None => return None,
    };
    let (name, rest) = node.split_once(" on ").unwrap_or((node, ""));
    let name = name.split_once(" using ").map_or(name, |(name, _)| name);
    Some(Line {
        indent,
        node: String::from(name),
        table: rest.split_whitespace().next().map(String::from),
    })
}

/// Each fragment of a plan: its tables, the divided ones first and in bold, and what is done with their
/// rows.
fn describe(plan: &[String]) -> String {
    let lines: Vec<Line> = plan.iter().filter_map(|text| line(text)).collect();
    let mut fragments = Vec::new();
    let mut rest = lines.iter().peekable();
    while let Some(above) = rest.next() {
        if above.node != "Custom Scan (ParallelReplicas)" {
            continue;
        }
        let (mut steps, mut divided, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        let mut at_top = true;
        while let Some(below) = rest.next_if(|below| below.indent > above.indent) {
            let joins = below.node.contains("Join") || below.node.contains("Nested Loop");
            at_top &= !joins && below.table.is_none() && below.node != "Append";
            if at_top {
                steps.push(below.node.to_lowercase());
            }
            match &below.table {
                Some(table) if below.node.contains("GranuleScan") => {
                    divided.push(format!("**{table}**"));
                }
                Some(table) if below.node != "Bitmap Index Scan" => whole.push(table.clone()),
                _ => {}
            }
        }
        let tables: Vec<String> = divided.into_iter().chain(whole).collect();
        steps.reverse();
        let steps = match steps.is_empty() {
            true => String::new(),
            false => format!(": {}", steps.join(", ")),
        };
        fragments.push(format!("{}{steps}", tables.join(", ")));
    }
    fragments.join("; ")
}

fn plan(client: &mut Client, query: &str) -> Vec<String> {
    client
        .query(&format!("EXPLAIN (COSTS OFF) {query}"), &[])
        .unwrap_or_else(|error| panic!("{error:?}\n{query}"))
        .iter()
        .map(|row| row.get(0))
        .collect()
}

#[test]
fn the_table_of_tpch_is_what_explain_says() {
    let cluster = Cluster::builder().standbys(1).autovacuum(false).start();
    cluster.register_replicas();
    tpch::load(&cluster.config(PRIMARY), 0.05, Indexes::All, |_| {});
    let mut client = cluster.connect(PRIMARY);
    // Statistics of all rows are the same each time; small tables stand for large ones.
    client
        .batch_execute(
            "SET default_statistics_target = 10000; ANALYZE;
             SET parallel_setup_cost = 0; SET parallel_replicas.setup_cost = 0;
             SET min_parallel_table_scan_size = 0; SET min_parallel_index_scan_size = 0",
        )
        .unwrap();
    let mut table = String::from("| query | chosen by cost | forced |\n|---|---|---|\n");
    for number in tpch::QUERY_NUMBERS {
        let [by_cost, forced] = ["on", "force"].map(|mode| {
            client
                .batch_execute(&format!("SET enable_parallel_replicas = {mode}"))
                .unwrap();
            describe(&plan(&mut client, tpch::query(number)))
        });
        assert!(!forced.is_empty(), "Q{number} has no fragment");
        writeln!(table, "| Q{number} | {by_cost} | {forced} |").unwrap();
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/what-ships.md");
    let page = std::fs::read_to_string(page).expect("the page can be read");
    assert!(
        page.contains(&table),
        "docs/what-ships.md must have this table:\n{table}"
    );
}
