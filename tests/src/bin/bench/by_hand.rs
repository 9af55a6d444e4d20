//! What an expert could do without the extension: a view per range of blocks that aggregates its part,
//! a foreign table of postgres_fdw over it on each standby, read asynchronously, UNION ALL, and the
//! final aggregate. Not exact while somebody writes, and to be rewritten for every query.

use crate::scale::Query;
use parallel_replicas_tests::{Cluster, PRIMARY, text};
use std::fmt::Write as _;

/// Makes views and foreign tables for `servers` servers.
pub fn prepare(cluster: &Cluster, queries: &[Query], servers: usize) {
    let mut client = cluster.connect(PRIMARY);
    let blocks: usize = text(
        &mut client,
        "SELECT (pg_relation_size('lineitem') / current_setting('block_size')::int)::text",
    )
    .parse()
    .expect("a number");
    let mut script = String::from("CREATE EXTENSION IF NOT EXISTS postgres_fdw;\n");
    for node in 1..servers {
        let _ = writeln!(
            script,
            "CREATE SERVER IF NOT EXISTS by_hand_{node} FOREIGN DATA WRAPPER postgres_fdw
                 OPTIONS (host '127.0.0.1', port '{}', dbname 'postgres', async_capable 'true',
                          fetch_size '10000');
             CREATE USER MAPPING IF NOT EXISTS FOR CURRENT_USER SERVER by_hand_{node}
                 OPTIONS (user 'postgres');
             CREATE SCHEMA IF NOT EXISTS by_hand_{node};",
            cluster.port(node)
        );
    }
    for query in queries {
        for part in 0..servers {
            let (from, to) = (blocks * part / servers, blocks * (part + 1) / servers);
            let range = format!(
                "(SELECT * FROM lineitem WHERE ctid >= '({from},0)' AND ctid < '({to},0)') AS lineitem"
            );
            let _ = writeln!(
                script,
                "CREATE VIEW {} AS {};",
                name(query, servers, part),
                query.part.replace("{lineitem}", &range)
            );
        }
        for part in 1..servers {
            let _ = writeln!(
                script,
                "IMPORT FOREIGN SCHEMA public LIMIT TO ({})
                     FROM SERVER by_hand_{part} INTO by_hand_{part};",
                name(query, servers, part)
            );
        }
    }
    // The views have to be on the standbys before they are imported from there.
    let (views, imports): (Vec<&str>, Vec<&str>) = script
        .split_inclusive(";\n")
        .partition(|statement| !statement.starts_with("IMPORT"));
    cluster.psql(PRIMARY, &views.concat());
    cluster.wait_all_caught_up();
    cluster.psql(PRIMARY, &imports.concat());
}

/// The query over those views: this server's own part and the others'.
pub fn statement(query: &Query, servers: usize) -> String {
    let parts: Vec<String> = (0..servers)
        .map(|part| {
            let schema = match part {
                0 => "public".to_owned(),
                _ => format!("by_hand_{part}"),
            };
            format!("SELECT * FROM {schema}.{}", name(query, servers, part))
        })
        .collect();
    query.whole.replace(
        "{parts}",
        &format!("({}) AS parts", parts.join(" UNION ALL ")),
    )
}

fn name(query: &Query, servers: usize, part: usize) -> String {
    format!("{}_{servers}_{part}", query.name)
}
