//! Whether the standbys still hold what the primary holds.
//!
//! A reader with a wrong snapshot on a standby does not only get a wrong answer: it may set hint
//! bits that hide committed rows, or show aborted ones, to every later reader of that standby. So
//! after a test every table is read on every node by ordinary queries and must be the same.
//! Nothing may write meanwhile.

use std::fmt;

use postgres::Client;

use crate::cluster::{Cluster, PRIMARY, text};

/// One relation that is not the same on a standby as on the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Name of the standby.
    pub standby: String,
    /// `database.schema.relation`.
    pub relation: String,
    /// Row count and hash on the primary.
    pub primary_has: String,
    /// Row count and hash on the standby.
    pub standby_has: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on {}: {}, on the primary: {}",
            self.relation, self.standby, self.standby_has, self.primary_has
        )
    }
}

/// Waits until every standby has caught up, then panics if one holds other rows than the primary.
///
/// All standbys must be up and in recovery.
/// Also panics if a query of the primary's log counted more granules than there were to read.
#[track_caller]
pub fn damage_check(cluster: &Cluster) {
    cluster.wait_all_caught_up();
    counters_check(cluster);
    for node in cluster.standbys() {
        let damage = damage_on(cluster, node);
        let lines: Vec<String> = damage.iter().map(Damage::to_string).collect();
        assert!(
            damage.is_empty(),
            "a standby differs from its primary:\n{}",
            lines.join("\n")
        );
    }
}

/// The node's log of queries agrees with itself: every granule of a finished query was its process's own,
/// stolen by hash or stolen from the rest. Fewer may be read than were selected, where a LIMIT or a
/// join needed no more; that all were read otherwise is checked by the query itself.
#[track_caller]
fn counters_check(cluster: &Cluster) {
    let mut client = cluster.connect(PRIMARY);
    let logged = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'parallel_replicas')
              AND current_setting('shared_preload_libraries') LIKE '%parallel_replicas%'";
    if !client
        .query_one(logged, &[])
        .expect("the catalog can be read")
        .get::<_, bool>(0)
    {
        return;
    }
    let miscounted = column(
        &mut client,
        "SELECT format('%s own, %s stolen by hash, %s stolen rest, of %s granules: %s', granules_own,
                granules_stolen_by_hash, granules_stolen_rest, granules, query)
         FROM parallel_replicas.query_log
         WHERE status = 'finished'
           AND granules_own + granules_stolen_by_hash + granules_stolen_rest > granules",
    );
    assert!(
        miscounted.is_empty(),
        "miscounted:\n{}",
        miscounted.join("\n")
    );
}

/// Compares one standby with the primary as they are now, without waiting.
#[track_caller]
pub fn damage_on(cluster: &Cluster, node: usize) -> Vec<Damage> {
    let mut primary = cluster.connect(PRIMARY);
    let databases = column(
        &mut primary,
        "SELECT datname::text FROM pg_database WHERE datallowconn ORDER BY 1",
    );
    let mut damage = Vec::new();
    for database in databases {
        let mut primary = cluster.connect_db(PRIMARY, &database);
        let mut standby = cluster.connect_db(node, &database);
        for client in [&mut primary, &mut standby] {
            switch_off(client);
        }
        for (relation, query) in fingerprint_queries(&mut primary) {
            let primary_has = text(&mut primary, &query);
            let standby_has = match standby.query_one(&query, &[]) {
                Ok(row) => row.get(0),
                Err(error) => format!("{error:?}"),
            };
            if primary_has != standby_has {
                damage.push(Damage {
                    standby: String::from(cluster.name(node)),
                    relation: format!("{database}.{relation}"),
                    primary_has,
                    standby_has,
                });
            }
        }
    }
    damage
}

/// Ordinary queries only; the settings do not exist where the library is not loaded.
fn switch_off(client: &mut Client) {
    client
        .batch_execute(
            "SELECT set_config(name, 'off', false) FROM pg_settings
             WHERE name IN ('enable_parallel_replicas', 'parallel_replicas.debug_force')",
        )
        .expect("the settings can be set");
}

/// For every permanent table and materialised view outside the system schemas: its name, and a
/// query for its row count and a hash over all rows that does not depend on their order.
fn fingerprint_queries(client: &mut Client) -> Vec<(String, String)> {
    let query = "SELECT c.oid::regclass::text,
            format('SELECT format(''%%s rows, hash %%s'', count(*),
                       coalesce(sum(hashtextextended(_row::text, 0)::numeric), 0))
                    FROM ONLY %s AS _row', c.oid::regclass)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'm') AND c.relpersistence = 'p' AND c.relispopulated
          AND n.nspname NOT IN ('pg_catalog', 'information_schema')
          AND n.nspname NOT LIKE 'pg_toast%'
        ORDER BY 1";
    let rows = client.query(query, &[]).expect("the catalog can be read");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn column(client: &mut Client, query: &str) -> Vec<String> {
    let rows = client.query(query, &[]).expect("the query runs");
    rows.iter().map(|row| row.get(0)).collect()
}
