//! The source tree keeps its own rules: which room may use which, how a file begins, how long it
//! gets, and which libpq functions the library needs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use parallel_replicas_tests::system::pg_config;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("folder can be read") {
        let path = entry.expect("entry can be read").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn all_rust_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    rust_files(&root().join("src"), &mut files);
    rust_files(&root().join("tests"), &mut files);
    files
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("file can be read")
}

/// ARCHITECTURE.md, "Rooms", column "may import", for the extension's own modules.
fn allowed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    [
        ("pg", vec![]),
        ("settings", vec![]),
        ("error", vec![]),
        ("secret", vec!["error", "pg"]),
        ("shm", vec!["pg", "settings"]),
        ("net", vec!["pg", "error", "shm"]),
        ("cluster", vec!["net", "pg", "shm"]),
        ("log", vec!["pg", "settings", "shm"]),
        ("choice", vec!["pg", "shm", "settings", "cluster"]),
        ("monitor", vec!["net", "shm", "pg", "settings", "cluster"]),
        (
            "plan",
            vec!["pg", "shm", "settings", "cluster", "choice", "log"],
        ),
        (
            "exec",
            vec![
                "net", "shm", "pg", "settings", "plan", "cluster", "choice", "error", "secret",
                "log", "queue",
            ],
        ),
        (
            "serve",
            vec![
                "pg", "settings", "error", "exec", "plan", "shm", "secret", "log",
            ],
        ),
        (
            "prewarm",
            vec![
                "net", "pg", "settings", "cluster", "choice", "error", "exec",
            ],
        ),
        (
            "api",
            vec![
                "cluster", "choice", "error", "net", "pg", "prewarm", "queue", "serve", "settings",
                "shm", "log",
            ],
        ),
        ("queue", vec!["pg", "error", "plan", "monitor", "choice"]),
    ]
    .into_iter()
    .map(|(room, rooms)| (room, rooms.into_iter().collect()))
    .collect()
}

#[test]
fn rooms_import_one_way() {
    let allowed = allowed();
    let source = root().join("src");
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let relative = file.strip_prefix(&source).expect("below src").to_owned();
        let first = relative
            .iter()
            .next()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let room = first.trim_end_matches(".rs").to_owned();
        if ["core", "lib", "test_points"].contains(&room.as_str()) {
            continue;
        }
        let rooms = allowed
            .get(room.as_str())
            .unwrap_or_else(|| panic!("unknown room {room}"));
        for used in modules_used(&read(&file)) {
            if used != room && !rooms.contains(used.as_str()) {
                wrong.push(format!("{} uses {used}", relative.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// First path segments after `crate::`, also inside braces.
fn modules_used(text: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for piece in text.split("crate::").skip(1) {
        if let Some(list) = piece.strip_prefix('{') {
            let list = &list[..list.find(';').unwrap_or(list.len())];
            let mut depth = 0;
            for item in list.split_inclusive(['{', '}', ',']) {
                if depth == 0 {
                    used.insert(first_word(item.trim_start()));
                }
                depth += item.matches('{').count();
                depth = depth.saturating_sub(item.matches('}').count());
            }
        } else {
            used.insert(first_word(piece));
        }
    }
    used.remove("");
    used
}

fn first_word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
        .collect()
}

#[test]
fn core_does_not_know_postgresql() {
    let manifest = read(&root().join("src/core/Cargo.toml"));
    for crate_name in ["pgrx", "libc", "pq-sys"] {
        assert!(
            !manifest.contains(crate_name),
            "core depends on {crate_name}"
        );
    }
    let mut files = Vec::new();
    rust_files(&root().join("src/core/src"), &mut files);
    for file in files {
        let text = read(&file);
        for word in [
            "std::time",
            "std::net",
            "std::thread",
            "std::fs",
            "std::env",
        ] {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_stays_readable() {
    const LINES_MAX: usize = 800;
    for file in all_rust_files() {
        let text = read(&file);
        assert!(
            text.starts_with("//!"),
            "{} has no module comment",
            file.display()
        );
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", file.display());
    }
}

/// The library must load with the libpq of the oldest supported PostgreSQL: each PQ function it
/// needs was there in version 10.
#[test]
fn the_library_needs_only_old_libpq_functions() {
    const KNOWN: &[&str] = &[
        "PQbackendPID",
        "PQclear",
        "PQcmdTuples",
        "PQconndefaults",
        "PQconninfoFree",
        "PQconnectPoll",
        "PQconnectStartParams",
        "PQconnectionNeedsPassword",
        "PQconnectionUsedPassword",
        "PQconsumeInput",
        "PQerrorMessage",
        "PQfinish",
        "PQflush",
        "PQfreemem",
        "PQfname",
        "PQfnumber",
        "PQgetCopyData",
        "PQgetisnull",
        "PQgetlength",
        "PQgetResult",
        "PQgetvalue",
        "PQhost",
        "PQhostaddr",
        "PQisBusy",
        "PQnfields",
        "PQntuples",
        "PQport",
        "PQputCopyData",
        "PQputCopyEnd",
        "PQresultErrorField",
        "PQresultErrorMessage",
        "PQresultStatus",
        "PQsendQuery",
        "PQsetErrorVerbosity",
        "PQsetNoticeReceiver",
        "PQsetSingleRowMode",
        "PQsetnonblocking",
        "PQsocket",
        "PQgssEncInUse",
        "PQsslInUse",
        "PQstatus",
        "PQtransactionStatus",
    ];
    let library = library();
    let symbols = Command::new("nm")
        .args(["-D", "--undefined-only"])
        .arg(&library)
        .output()
        .expect("nm runs");
    assert!(
        symbols.status.success(),
        "{} is not installed",
        library.display()
    );
    let symbols = String::from_utf8(symbols.stdout).expect("names");
    let needed: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(|name| name.split('@').next().unwrap_or(name))
        .filter(|name| name.starts_with("PQ"))
        .collect();
    assert!(
        needed.contains(&"PQgetCopyData"),
        "found no libpq functions: {needed:?}"
    );
    let unknown: Vec<_> = needed.iter().filter(|name| !KNOWN.contains(name)).collect();
    assert!(
        unknown.is_empty(),
        "not known to be in the oldest libpq: {unknown:?}"
    );
}

/// The library that is installed.
fn library() -> PathBuf {
    Path::new(&pg_config("--pkglibdir")).join("parallel_replicas.so")
}

/// Places at which a test makes the server fail are in a build of their own.
#[test]
fn the_library_has_no_test_points() {
    let bytes = std::fs::read(library()).expect("the library is installed");
    let has = |word: &str| {
        bytes
            .windows(word.len())
            .any(|part| part == word.as_bytes())
    };
    // What is certainly there is found.
    assert!(has("enable_parallel_replicas"));
    for word in ["test_points", "test point ", "serve-announced"] {
        assert!(!has(word), "{word}");
    }
}
