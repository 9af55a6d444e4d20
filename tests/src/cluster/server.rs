//! One PostgreSQL server of a cluster: its folder, port, log and processes.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;

use super::options::{Options, conf_line};
use crate::ports::Port;
use crate::system::{exists, installation, is_alive, output_of, process_tree, signal};
use crate::wait::{SOON, wait_until};

/// How a server is asked to stop; the modes of `pg_ctl stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Waits for all clients to leave.
    Smart,
    /// Ends client sessions, then shuts down cleanly.
    Fast,
    /// Aborts all processes; the next start recovers as from a crash.
    Immediate,
}

impl StopMode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Smart => "smart",
            Self::Fast => "fast",
            Self::Immediate => "immediate",
        }
    }
}

pub(super) struct Server {
    pub(super) name: String,
    base: PathBuf,
    port: Port,
    stopped_by_signal: bool,
}

impl Server {
    fn new(base: &Path, name: &str) -> Self {
        Self {
            name: String::from(name),
            base: PathBuf::from(base),
            port: Port::reserve(),
            stopped_by_signal: false,
        }
    }

    /// initdb for the primary; the server is not started.
    pub(super) fn init_primary(base: &Path, options: &Options) -> Self {
        let server = Self::new(base, "primary");
        output_of(
            installation()
                .server_command("initdb", base)
                .arg("--pgdata")
                .arg(server.data_dir())
                .args([
                    "--username=postgres",
                    "--auth=trust",
                    "--encoding=UTF8",
                    "--no-sync",
                ])
                .args([
                    format!("--locale={}", options.locale),
                    String::from("--lc-messages=C"),
                ])
                .args(options.checksums.then_some("--data-checksums")),
        );
        server.append_conf(&options.conf_lines());
        server.append_own_conf();
        server
    }

    /// pg_basebackup of `primary`, over its own replication slot; the server is not started.
    pub(super) fn init_standby(base: &Path, name: &str, primary: &Server) -> Self {
        let server = Self::new(base, name);
        server.copy_from(primary);
        server
    }

    /// Takes the data folder from `primary`; the replication slot must not exist.
    pub(super) fn copy_from(&self, primary: &Server) {
        let name = &self.name;
        let source = format!(
            "host=127.0.0.1 port={} user=postgres application_name={name}",
            primary.port()
        );
        output_of(
            installation()
                .server_command("pg_basebackup", &self.base)
                .arg("--pgdata")
                .arg(self.data_dir())
                .args(["--dbname", &source, "--slot", name, "--create-slot"])
                .args([
                    "--write-recovery-conf",
                    "--checkpoint=fast",
                    "--wal-method=stream",
                ])
                .arg("--no-sync"),
        );
        self.append_own_conf();
    }

    /// Stops the server and removes its data folder.
    pub(super) fn remove_data(&mut self) {
        self.stop_for_good();
        let folder = self.data_dir();
        fs::remove_dir_all(&folder)
            .unwrap_or_else(|error| panic!("could not remove {}: {error}", folder.display()));
    }

    pub(super) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.base.join(&self.name)
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.base.join(format!("{}.log", self.name))
    }

    pub(super) fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What differs between the servers although their data is the same.
    fn append_own_conf(&self) {
        let socket_dir = self.base.to_str().expect("the folder's name is UTF-8");
        self.append_conf(&format!(
            "{}{}{}",
            conf_line("port", &self.port().to_string()),
            conf_line("unix_socket_directories", socket_dir),
            conf_line("cluster_name", &self.name),
        ));
    }

    pub(super) fn append_conf(&self, lines: &str) {
        let path = self.data_dir().join("postgresql.conf");
        OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(lines.as_bytes()))
            .unwrap_or_else(|error| panic!("could not write {}: {error}", path.display()));
    }

    #[track_caller]
    pub(super) fn start(&self) {
        if let Err(reason) = self.try_start(None) {
            panic!(
                "{} did not start: {reason}\n{}",
                self.name,
                last_lines(&self.log(), 20)
            );
        }
    }

    /// Starts the server and waits until it accepts connections; says why when it does not. `memory`: how
    /// much address space, in bytes, each of its processes may have.
    pub(super) fn try_start(&self, memory: Option<u64>) -> Result<(), String> {
        let mut command = match memory {
            None => installation().server_command("pg_ctl", &self.base),
            Some(bytes) => {
                let mut command = installation().server_command("/usr/bin/prlimit", &self.base);
                command.arg(format!("--as={bytes}"));
                command.arg(installation().program("pg_ctl"));
                command
            }
        };
        let output = command
            .arg("--pgdata")
            .arg(self.data_dir())
            .arg("--log")
            .arg(self.log_path())
            .args(["--wait", "--timeout=60", "start"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Ok(())
        } else {
            Err(text.into_owned())
        }
    }

    #[track_caller]
    pub(super) fn stop(&mut self, mode: StopMode) {
        self.sigcont();
        self.pg_ctl(&["--mode", mode.as_str(), "--wait", "--timeout=60", "stop"]);
    }

    #[track_caller]
    pub(super) fn pg_ctl(&self, arguments: &[&str]) -> String {
        output_of(
            installation()
                .server_command("pg_ctl", &self.base)
                .arg("--pgdata")
                .arg(self.data_dir())
                .args(arguments),
        )
    }

    /// The postmaster's process id, when there is a postmaster.
    pub(super) fn postmaster_pid(&self) -> Option<i32> {
        let text = fs::read_to_string(self.data_dir().join("postmaster.pid")).ok()?;
        let pid = text.lines().next()?.trim().parse().ok()?;
        is_alive(pid).then_some(pid)
    }

    /// Kills the postmaster and all its children without any chance to clean up.
    pub(super) fn kill_9(&mut self) {
        let Some(postmaster) = self.postmaster_pid() else {
            return;
        };
        // The postmaster is stopped first, so that it cannot start another child meanwhile.
        signal(postmaster, Signal::STOP);
        let tree = process_tree(postmaster);
        for pid in &tree {
            signal(*pid, Signal::KILL);
        }
        // Zombies count too: the next postmaster takes them for a running server.
        wait_until(
            SOON,
            &format!("processes of {} are gone", self.name),
            || !tree.iter().any(|pid| exists(*pid)),
        );
        self.stopped_by_signal = false;
    }

    /// Freezes all processes of the server: connections stay open and nobody answers.
    pub(super) fn sigstop(&mut self) {
        let postmaster = self.postmaster_pid().expect("the server runs");
        for pid in process_tree(postmaster) {
            signal(pid, Signal::STOP);
        }
        self.stopped_by_signal = true;
    }

    pub(super) fn sigcont(&mut self) {
        if !std::mem::take(&mut self.stopped_by_signal) {
            return;
        }
        let Some(postmaster) = self.postmaster_pid() else {
            return;
        };
        for pid in process_tree(postmaster) {
            signal(pid, Signal::CONT);
        }
    }

    /// The stop of last resort: never panics, because it runs while a test may be panicking.
    pub(super) fn stop_for_good(&mut self) {
        let Some(postmaster) = self.postmaster_pid() else {
            return;
        };
        let tree = process_tree(postmaster);
        self.sigcont();
        let stopped = installation()
            .server_command("pg_ctl", &self.base)
            .arg("--pgdata")
            .arg(self.data_dir())
            .args(["--mode=immediate", "--wait", "--timeout=20", "stop"])
            .output()
            .is_ok_and(|output| output.status.success());
        if !stopped {
            for pid in tree.into_iter().filter(|pid| is_alive(*pid)) {
                signal(pid, Signal::KILL);
            }
        }
    }
}

/// The end of a log, for a person to read.
pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
