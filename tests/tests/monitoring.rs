//! The files in `monitoring/` fit the extension: their queries run, as a member of pg_monitor, give the
//! metrics that the documentation lists, and the dashboard asks for nothing else.

use parallel_replicas_tests::{Cluster, PRIMARY};
use postgres::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use yaml_rust2::{Yaml, YamlLoader};

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(path).expect("file can be read")
}

fn yaml(name: &str) -> Yaml {
    let mut documents = YamlLoader::load_from_str(&file(name)).expect("valid YAML");
    documents.swap_remove(0)
}

/// Runs a query and returns the names of its columns.
#[track_caller]
fn columns(client: &mut Client, query: &str) -> BTreeSet<String> {
    let rows = client
        .query(query, &[])
        .unwrap_or_else(|error| panic!("{error}: {query}"));
    let first = rows.first().unwrap_or_else(|| panic!("no row: {query}"));
    let names = first
        .columns()
        .iter()
        .map(|column| column.name().to_owned());
    names.collect()
}

fn text(yaml: &Yaml) -> String {
    yaml.as_str().expect("a string").to_owned()
}

/// Metric to labels, as postgres_exporter makes them: name of the query, and of the column.
fn postgres_exporter(client: &mut Client) -> BTreeMap<String, BTreeSet<String>> {
    let mut metrics = BTreeMap::new();
    for (name, entry) in yaml("monitoring/postgres_exporter.yml")
        .as_hash()
        .expect("a map")
    {
        let mut labels = BTreeSet::new();
        let mut values = BTreeSet::new();
        for metric in entry["metrics"].as_vec().expect("a list") {
            let (column, about) = metric.as_hash().expect("a map").iter().next().expect("one");
            match about["usage"].as_str().expect("a usage") {
                "LABEL" => labels.insert(text(column)),
                "COUNTER" | "GAUGE" => values.insert(text(column)),
                other => panic!("unknown usage {other}"),
            };
        }
        let expected: BTreeSet<String> = labels.union(&values).cloned().collect();
        assert_eq!(columns(client, &text(&entry["query"])), expected);
        for value in values {
            metrics.insert(format!("{}_{value}", text(name)), labels.clone());
        }
    }
    metrics
}

fn sql_exporter(client: &mut Client) -> BTreeMap<String, BTreeSet<String>> {
    let collector = yaml("monitoring/sql_exporter.collector.yml");
    let mut metrics = BTreeMap::new();
    for metric in collector["metrics"].as_vec().expect("a list") {
        let list = |key: &str| -> BTreeSet<String> {
            metric[key]
                .as_vec()
                .map_or_else(BTreeSet::new, |list| list.iter().map(text).collect())
        };
        let labels = list("key_labels");
        let expected = labels.union(&list("values")).cloned().collect();
        assert_eq!(columns(client, &text(&metric["query"])), expected);
        metrics.insert(text(&metric["metric_name"]), labels);
    }
    metrics
}

/// Words that look like our metrics.
fn metrics_named(text: &str) -> BTreeSet<String> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .filter(|word| word.starts_with("parallel_replicas_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn queries_metrics_dashboard_and_documentation_agree() {
    let cluster = Cluster::builder().start();
    cluster.psql(
        PRIMARY,
        "CREATE EXTENSION parallel_replicas; CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher",
    );
    let mut client = cluster.connect_as(PRIMARY, "watcher");
    let metrics = postgres_exporter(&mut client);
    assert_eq!(sql_exporter(&mut client), metrics);

    let documented: BTreeSet<String> = file("docs/monitoring.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `parallel_replicas_"))
        .filter_map(|rest| rest.split_once('`'))
        .map(|(name, _)| format!("parallel_replicas_{name}"))
        .collect();
    assert_eq!(documented, metrics.keys().cloned().collect());

    let events: BTreeSet<String> = client
        .query("SELECT event FROM parallel_replicas.events", &[])
        .expect("events")
        .iter()
        .map(|row| row.get(0))
        .collect();
    let dashboard: serde_json::Value =
        serde_json::from_str(&file("monitoring/grafana_dashboard.json")).expect("valid JSON");
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            let expression = target["expr"].as_str().expect("an expression");
            asked.extend(metrics_named(expression));
            for event in expression.split("event=\"").skip(1) {
                let event = event.split('"').next().expect("a label");
                assert!(events.contains(event), "there is no event {event}");
            }
        }
    }
    assert_eq!(asked, documented);
    // The events that the documentation names exist, too.
    for word in file("docs/monitoring.md").split('`') {
        if word.starts_with("ParallelReplicas") {
            assert!(events.contains(word), "there is no event {word}");
        }
    }
}
