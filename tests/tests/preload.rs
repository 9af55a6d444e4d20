//! A server that was not started with the library.

use parallel_replicas_tests::{Cluster, PRIMARY};

#[test]
fn the_extension_says_what_is_missing() {
    let cluster = Cluster::builder().preload(false).start();
    let mut client = cluster.connect(PRIMARY);
    let error = client
        .batch_execute("CREATE EXTENSION parallel_replicas")
        .unwrap_err();
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "55000");
    assert_eq!(
        error.message(),
        "parallel_replicas must be loaded via shared_preload_libraries"
    );
    let hint = error.hint().unwrap_or_default();
    assert!(
        hint.contains("shared_preload_libraries = 'parallel_replicas'"),
        "{hint}"
    );
    assert!(hint.contains("restart"), "{hint}");
}
