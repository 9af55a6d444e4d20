//! Links over TLS and with passwords, and that no secret is shown anywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use parallel_replicas_tests::system::{installation, output_of};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, damage_check, text, wait_until};
use postgres::{Client, SimpleQueryMessage};

const ROWS: &str = "20000";
const QUERY: &str = "SELECT count(*)::text FROM t";

/// The password of the link's role; nothing else has this text.
const PASSWORD: &str = "Xyzzy_plugh_42";

/// A primary with one standby, which asks the role `l` for its password, and for TLS if it has it.
fn scene(settings: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(1)
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.replay_wait_timeout", "20s")
        .settings(settings)
        .start();
    cluster.psql(
        PRIMARY,
        &format!(
            "SET log_statement = 'none';
             CREATE EXTENSION parallel_replicas;
             CREATE ROLE l LOGIN PASSWORD '{PASSWORD}' IN ROLE parallel_replicas_link;
             CREATE TABLE t AS SELECT generate_series(1, {ROWS}) AS i; ANALYZE t"
        ),
    );
    cluster.register_replicas();
    cluster
}

/// Who may come in how, first line first.
fn access(cluster: &Cluster, node: usize, lines: &str) {
    let path = cluster.data_dir(node).join("pg_hba.conf");
    let old = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{lines}\n{old}")).unwrap();
    cluster.reload(node);
}

/// Replaces the user mapping by one for the role `l`.
fn log_in_as_l(cluster: &Cluster, password: &str) {
    cluster.psql(
        PRIMARY,
        &format!(
            "DROP USER MAPPING IF EXISTS FOR postgres SERVER standby1;
             CREATE USER MAPPING FOR postgres SERVER standby1
                 OPTIONS (user 'l'{password})"
        ),
    );
    cluster.wait_all_caught_up();
}

fn session(cluster: &Cluster, user: &str) -> Client {
    let mut client = cluster.connect_as(PRIMARY, user);
    client
        .batch_execute(
            "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
             SET client_min_messages = error",
        )
        .unwrap();
    client
}

fn explain(client: &mut Client) -> String {
    let messages = client
        .simple_query(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)
             SELECT count(*) FROM t WHERE length(repeat(i::text, 20000)) > 0",
        )
        .expect("the query succeeds");
    let lines = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A new session uses the replica.
#[track_caller]
fn assert_used(cluster: &Cluster) {
    assert_used_by(cluster, "postgres");
}

#[track_caller]
fn assert_used_by(cluster: &Cluster, user: &str) {
    let mut client = session(cluster, user);
    let mut plan = String::new();
    wait_until(SOON, "the replica is used", || {
        plan = explain(&mut client);
        plan.contains("Replicas Used: 1")
    });
    assert_eq!(text(&mut client, QUERY), ROWS);
}

/// A new session leaves it out, for this reason.
#[track_caller]
fn assert_left_out(cluster: &Cluster, reason: &str) {
    assert_left_out_for(cluster, "postgres", reason);
}

#[track_caller]
fn assert_left_out_for(cluster: &Cluster, user: &str, reason: &str) {
    let mut plan = String::new();
    wait_until(SOON, &format!("the replica is left out: {reason}"), || {
        plan = explain(&mut session(cluster, user));
        plan.contains(reason)
    });
    assert!(plan.contains("Replicas Used: 0"), "{plan}");
    assert!(!plan.contains(PASSWORD), "{plan}");
    assert_eq!(text(&mut session(cluster, user), QUERY), ROWS);
}

/// A certificate for the name `replica.example`, made by itself, in the cluster's folder.
fn certificate(cluster: &Cluster, name: &str) -> (PathBuf, PathBuf) {
    let path = |suffix: &str| cluster.base().join(format!("{name}.{suffix}"));
    let (certificate, key) = (path("crt"), path("key"));
    output_of(
        Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
            .args(["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=replica.example"])
            .args(["-addext", "subjectAltName=DNS:replica.example"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate),
    );
    for file in [&certificate, &key] {
        own(file);
    }
    (certificate, key)
}

/// Makes a file the servers' own, and readable to nobody else.
fn own(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    installation().give_to_server_user(file);
}

#[test]
fn links_use_tls_and_check_the_certificate() {
    let cluster = scene(&[]);
    let (certificate, key) = certificate(&cluster, "server");
    let (other, _) = self::certificate(&cluster, "other");
    cluster.configure(1, "ssl_cert_file", certificate.to_str().unwrap());
    cluster.configure(1, "ssl_key_file", key.to_str().unwrap());
    cluster.configure(1, "ssl", "on");
    access(
        &cluster,
        1,
        "hostssl all l 127.0.0.1/32 scram-sha-256\nhostnossl all l 127.0.0.1/32 reject",
    );
    log_in_as_l(&cluster, &format!(", password '{PASSWORD}'"));
    let alter = |options: &str| {
        cluster.psql(
            PRIMARY,
            &format!("ALTER SERVER standby1 OPTIONS ({options})"),
        );
        cluster.wait_all_caught_up();
    };
    alter("ADD sslmode 'disable'");
    assert_left_out(&cluster, "pg_hba.conf rejects connection");

    alter("SET sslmode 'require'");
    assert_used(&cluster);
    let mut observer = cluster.connect(1);
    let mut kept = session(&cluster, "postgres");
    assert_eq!(text(&mut kept, QUERY), ROWS);
    assert_eq!(
        text(
            &mut observer,
            "SELECT bool_and(ssl)::text FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
             WHERE usename = 'l'",
        ),
        "true"
    );
    drop(kept);

    // Somebody's certificate is not this server's.
    alter(&format!(
        "SET sslmode 'verify-full', ADD sslrootcert '{}'",
        other.display()
    ));
    assert_left_out(&cluster, "certificate verify failed");
    // It is this server's, under another name.
    alter(&format!("SET sslrootcert '{}'", certificate.display()));
    assert_left_out(&cluster, "does not match host name");
    alter("SET host 'replica.example', ADD hostaddr '127.0.0.1'");
    assert_used(&cluster);
    // Channel binding is libpq's affair, and works over the same link.
    alter("ADD channel_binding 'require'");
    assert_used(&cluster);
    damage_check(&cluster);
}

#[test]
fn a_password_file_serves_superusers() {
    let cluster = scene(&[]);
    access(&cluster, 1, "host all l 127.0.0.1/32 scram-sha-256");
    log_in_as_l(&cluster, "");
    assert_left_out(&cluster, "no password supplied");
    let file = cluster.base().join("passwords");
    fs::write(
        &file,
        format!("127.0.0.1:{}:*:l:{PASSWORD}\n", cluster.port(1)),
    )
    .unwrap();
    own(&file);
    cluster.psql(
        PRIMARY,
        &format!(
            "ALTER SERVER standby1 OPTIONS (ADD passfile '{}')",
            file.display()
        ),
    );
    cluster.wait_all_caught_up();
    assert_used(&cluster);
    damage_check(&cluster);
}

/// postgres_fdw's rules: who is no superuser needs USAGE, a mapping and a password in it, and gets no
/// further with what the server's own account could do.
#[test]
fn who_is_no_superuser_needs_a_password_that_is_asked_for() {
    const USER: &str = "ordinary";
    let cluster = scene(&[("parallel_replicas.monitor_interval", "0")]);
    let trusting = fs::read_to_string(cluster.data_dir(1).join("pg_hba.conf")).unwrap();
    access(&cluster, 1, "host all l 127.0.0.1/32 scram-sha-256");
    // The server's own account could log in as the role.
    let file = cluster.base().join("passwords");
    let port = cluster.port(1);
    fs::write(&file, format!("127.0.0.1:{port}:*:l:{PASSWORD}\n")).unwrap();
    own(&file);
    let change = |script: &str| {
        cluster.psql(PRIMARY, script);
        cluster.wait_all_caught_up();
    };
    let with_password = format!("OPTIONS (user 'l', password '{PASSWORD}')");
    change(&format!(
        "CREATE ROLE {USER} LOGIN; GRANT SELECT ON t TO {USER};
         CREATE USER MAPPING FOR {USER} SERVER standby1 {with_password};
         ALTER SERVER standby1 OPTIONS (ADD passfile '{}')",
        file.display()
    ));
    let left_out = |reason: &str| {
        // To the end of the line: one reason begins with the words of another.
        assert_left_out_for(&cluster, USER, &format!(" unavailable: {reason}\n"));
        let steps = format!(
            "SELECT count(*)::text FROM parallel_replicas.text_log
             WHERE event = 'unavailable' AND replica = 'standby1'
               AND message LIKE '% was unavailable: {reason}'"
        );
        let mut client = cluster.connect_as(PRIMARY, USER);
        assert_ne!(text(&mut client, &steps), "0", "{reason}");
    };

    left_out("permission denied for foreign server \"standby1\"");
    change(&format!("GRANT USAGE ON FOREIGN SERVER standby1 TO {USER}"));
    assert_used_by(&cluster, USER);

    change(&format!("DROP USER MAPPING FOR {USER} SERVER standby1"));
    left_out("user mapping not found for \"ordinary\" on replica \"standby1\"");

    for nothing in ["", ", password ''"] {
        change(&format!(
            "DROP USER MAPPING IF EXISTS FOR {USER} SERVER standby1;
             CREATE USER MAPPING FOR {USER} SERVER standby1 OPTIONS (user 'l'{nothing})"
        ));
        left_out("password is required for \"ordinary\" on replica \"standby1\"");
    }

    change(&format!(
        "DROP USER MAPPING FOR {USER} SERVER standby1;
         CREATE USER MAPPING FOR {USER} SERVER standby1 {with_password}"
    ));
    assert_used_by(&cluster, USER);
    fs::write(cluster.data_dir(1).join("pg_hba.conf"), trusting).unwrap();
    cluster.reload(1);
    left_out("password is required");
    let logged = " replica \"standby1\" was unavailable: password is required\n";
    assert!(cluster.log(PRIMARY).contains(logged));
    // Only a superuser lifts the rule.
    change(&format!(
        "ALTER USER MAPPING FOR {USER} SERVER standby1 OPTIONS (ADD password_required 'false')"
    ));
    assert_used_by(&cluster, USER);
    damage_check(&cluster);
}

#[test]
fn channel_binding_that_is_required_is_not_done_without() {
    let cluster = scene(&[("parallel_replicas.monitor_interval", "0")]);
    log_in_as_l(&cluster, &format!(", password '{PASSWORD}'"));
    assert_used(&cluster);
    cluster.psql(
        PRIMARY,
        "ALTER SERVER standby1 OPTIONS (ADD channel_binding 'require')",
    );
    cluster.wait_all_caught_up();
    // The server trusts; then it asks for the password, but without TLS there is nothing to bind to.
    assert_left_out(
        &cluster,
        "server authenticated client without channel binding",
    );
    access(&cluster, 1, "host all l 127.0.0.1/32 scram-sha-256");
    assert_left_out(&cluster, "channel binding required, but SSL not in use");
    cluster.psql(
        PRIMARY,
        "ALTER SERVER standby1 OPTIONS (SET channel_binding 'prefer')",
    );
    cluster.wait_all_caught_up();
    assert_used(&cluster);
    damage_check(&cluster);
}

/// Everything that servers write and show, after everything that can go wrong with a log-in.
#[test]
fn no_secret_is_shown() {
    let cluster = scene(&[
        ("log_min_messages", "debug1"),
        ("log_connections", "on"),
        ("parallel_replicas.log_level", "trace"),
        ("parallel_replicas.monitor_interval", "200ms"),
    ]);
    access(&cluster, 1, "host all l 127.0.0.1/32 scram-sha-256");
    let mut primary = cluster.connect(PRIMARY);
    let secret = text(
        &mut primary,
        "SELECT encode(secret, 'hex') FROM parallel_replicas.secret",
    );
    // Right, then wrong, then right for a server that is not there.
    log_in_as_l(&cluster, &format!(", password '{PASSWORD}'"));
    assert_used(&cluster);
    let wrong = format!("{PASSWORD}_wrong");
    log_in_as_l(&cluster, &format!(", password '{wrong}'"));
    assert_left_out(&cluster, "password authentication failed");
    log_in_as_l(&cluster, &format!(", password '{PASSWORD}'"));
    let port = cluster.port(1);
    cluster.psql(PRIMARY, "ALTER SERVER standby1 OPTIONS (SET port '1')");
    assert_left_out(&cluster, "could not connect");
    cluster.psql(
        PRIMARY,
        &format!("ALTER SERVER standby1 OPTIONS (SET port '{port}')"),
    );
    cluster.wait_all_caught_up();
    cluster.psql(
        PRIMARY,
        "ALTER SERVER standby1 OPTIONS (ADD sslmode 'require')",
    );
    assert_left_out(&cluster, "SSL was required");

    // Only who may see mappings' options sees the password, and nobody elsewhere.
    cluster.psql(
        PRIMARY,
        "CREATE ROLE anybody LOGIN; GRANT pg_monitor TO anybody",
    );
    cluster.wait_all_caught_up();
    let mut shown = String::new();
    for node in [PRIMARY, 1] {
        shown += &cluster.log(node);
        for user in ["postgres", "anybody"] {
            let mut client = cluster.connect_as(node, user);
            let views = client
                .query(
                    "SELECT c.oid::regclass::text FROM pg_class c
                     JOIN pg_namespace n ON n.oid = c.relnamespace
                     WHERE n.nspname = 'parallel_replicas' AND c.relkind = 'v'",
                    &[],
                )
                .unwrap();
            assert!(views.len() > 10, "{} views", views.len());
            let own = views.iter().map(|row| row.get::<_, String>(0));
            for view in own.chain([
                String::from("parallel_replicas.check_cluster()"),
                String::from("pg_stat_activity"),
                String::from("pg_foreign_server"),
            ]) {
                let query =
                    format!("SELECT coalesce(string_agg(v::text, E'\\n'), '') FROM {view} v");
                match client.query_one(&query, &[]) {
                    Ok(row) => shown += row.get(0),
                    Err(error) => shown += &format!("{error:?}"),
                }
            }
        }
    }
    assert!(shown.len() > 10_000, "little was shown");
    for hidden in [PASSWORD, &secret] {
        let place = shown.find(hidden).map(|at| {
            let start = shown[..at].rfind('\n').unwrap_or(0);
            &shown[start..(at + 100).min(shown.len())]
        });
        assert_eq!(place, None, "a secret is shown");
    }
}
