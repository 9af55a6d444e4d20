//! The TPC-H kit on plain PostgreSQL: data load, all queries run, answers are the published ones.

use parallel_replicas_tests::tpch::{self, Indexes};
use parallel_replicas_tests::{Cluster, PRIMARY, Rows};

#[test]
fn all_queries_run_on_a_small_scale() {
    let cluster = Cluster::builder().preload(false).autovacuum(false).start();
    let mut reports = 0;
    tpch::load(&cluster.config(PRIMARY), 0.01, Indexes::All, |progress| {
        reports += usize::from(progress.finished);
    });
    assert_eq!(reports, 1);
    let mut client = cluster.connect(PRIMARY);
    // dbgen's own number of rows at this scale.
    let lines = Rows::fetch(&mut client, "SELECT count(*) FROM lineitem").unwrap();
    assert_eq!(lines.rows[0][0].as_deref(), Some("60175"));
    for number in tpch::QUERY_NUMBERS {
        let rows = Rows::fetch(&mut client, tpch::query(number))
            .unwrap_or_else(|error| panic!("Q{number} failed: {error:?}"));
        assert!(!rows.columns.is_empty());
        let is_selective = matches!(number, 18 | 21);
        assert!(
            is_selective || !rows.rows.is_empty(),
            "Q{number} found nothing"
        );
    }
}

#[test]
#[ignore = "loads 1 GB; run by hand after a change to queries, schema or generator"]
fn answers_at_scale_factor_1_are_the_published_ones() {
    let cluster = Cluster::builder()
        .preload(false)
        .shared_buffers("1GB")
        .setting("max_wal_size", "8GB")
        .setting("work_mem", "256MB")
        .start();
    tpch::load(&cluster.config(PRIMARY), 1.0, Indexes::All, |_| {});
    let mut client = cluster.connect(PRIMARY);
    let mut wrong = Vec::new();
    for number in tpch::QUERY_NUMBERS {
        let rows = Rows::fetch(&mut client, tpch::query(number)).unwrap();
        if let Some(difference) = tpch::check_published_answer(number, &rows) {
            wrong.push(format!("Q{number}: {difference}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
