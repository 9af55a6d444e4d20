//! How the harness runs PostgreSQL's own programs on this machine.
//!
//! PostgreSQL refuses to run as root, so as root every server program runs as the user `postgres`
//! through `runuser`, and otherwise as oneself. The binaries are those of the `pg_config` that the
//! environment variable `PG_CONFIG` names, `/usr/bin/pg_config` when it is not set, which is the
//! one that `make install` installs the extension for.
//!
//! This module knows nothing of clusters; [`crate::cluster`] does.

use std::env;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

pub use rustix::process::Signal;
use rustix::process::{Pid, geteuid, kill_process, test_kill_process};

/// The user that owns the servers when the harness runs as root (Debian's package creates it).
const SERVER_USER: &str = "postgres";

/// The PostgreSQL installation under test.
pub struct Installation {
    bindir: PathBuf,
    server_uid: Option<u32>,
}

/// Finds the installation once per process.
pub fn installation() -> &'static Installation {
    static FOUND: OnceLock<Installation> = OnceLock::new();
    FOUND.get_or_init(Installation::find)
}

impl Installation {
    fn find() -> Self {
        let server_uid = geteuid().is_root().then(|| {
            let uid = output_of(Command::new("id").args(["-u", SERVER_USER]));
            uid.trim().parse().expect("id -u prints a number")
        });
        Self {
            bindir: PathBuf::from(pg_config("--bindir")),
            server_uid,
        }
    }

    /// Where a program of PostgreSQL's is.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bindir.join(name)
    }

    /// A command for a program that must run as the owner of the servers.
    pub fn server_command(&self, program: &str, base: &Path) -> Command {
        let path = self.bindir.join(program);
        let mut command = if self.server_uid.is_some() {
            let mut command = Command::new("runuser");
            command.args(["-u", SERVER_USER, "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        command.current_dir(base);
        without_pg_variables(&mut command);
        // pgrx would print backtraces into the details of errors.
        command.env_remove("RUST_BACKTRACE");
        command
    }

    /// The start of a shell command line for a program that must run as the owner of the servers.
    pub fn shell_command(&self, program: &str) -> String {
        let path = self.bindir.join(program);
        match self.server_uid {
            Some(_) => format!("runuser -u {SERVER_USER} -- {}", path.display()),
            None => path.display().to_string(),
        }
    }

    /// A command for a client program, which runs as whoever runs the harness.
    pub fn client_command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bindir.join(program));
        without_pg_variables(&mut command);
        command
    }

    /// Gives `path` to the owner of the servers.
    pub fn give_to_server_user(&self, path: &Path) {
        if let Some(uid) = self.server_uid {
            chown(path, Some(uid), None)
                .unwrap_or_else(|error| panic!("could not chown {}: {error}", path.display()));
        }
    }
}

/// The caller's PGPORT or PGOPTIONS must not reach the servers under test.
/// What the installation's `pg_config` says.
pub fn pg_config(option: &str) -> String {
    let program = env::var("PG_CONFIG").unwrap_or_else(|_| String::from("/usr/bin/pg_config"));
    output_of(Command::new(program).arg(option))
        .trim()
        .to_owned()
}

/// Where PostgreSQL's test drivers are: Debian keeps them in `pgxs/src/test` of the library folder, as
/// `make install` does.
pub fn test_programs() -> PathBuf {
    PathBuf::from(pg_config("--pgxs"))
        .parent()
        .and_then(Path::parent)
        .expect("pg_config --pgxs names src/makefiles/pgxs.mk")
        .join("test")
}

fn without_pg_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_MESSAGES", "C");
}

/// Runs a command to its end and returns its standard output; panics when it fails.
#[track_caller]
pub fn output_of(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("could not run {shown}: {error}"));
    assert!(
        output.status.success(),
        "{shown} failed with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A process and all its descendants, ancestors first.
///
/// A process that ends or starts meanwhile may be missing, so callers look again until nothing
/// changes.
pub fn process_tree(root: i32) -> Vec<i32> {
    let parents = parent_pids();
    let mut tree = vec![root];
    let mut next = 0;
    while next < tree.len() {
        let parent = tree[next];
        tree.extend(
            parents
                .iter()
                .filter(|(_, ppid)| *ppid == parent)
                .map(|(pid, _)| *pid),
        );
        next += 1;
    }
    tree
}

/// (pid, parent pid) of every process on the machine, from /proc/PID/stat (see proc(5)).
fn parent_pids() -> Vec<(i32, i32)> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The command name in parentheses may itself hold spaces and parentheses.
            let after_name = &stat[stat.rfind(')')? + 1..];
            let ppid = after_name.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, ppid))
        })
        .collect()
}

/// Sends a signal; a process that is gone already is not an error.
pub fn signal(pid: i32, signal: Signal) {
    let Some(target) = Pid::from_raw(pid) else {
        return;
    };
    match kill_process(target, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => panic!("could not send {signal:?} to process {pid}: {error}"),
    }
}

/// Whether a process id is in use, also by a zombie that its parent has not yet waited for.
pub fn exists(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|target| test_kill_process(target).is_ok())
}

/// Whether a process exists and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    if !exists(pid) {
        return false;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rfind(')')
        .and_then(|end| stat[end + 1..].split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}
