//! Stops the servers of a test process that was killed.
//!
//! `Drop` cleans up after a test that passes or panics, but not after Ctrl-C, SIGKILL or a CI
//! timeout. So each cluster has a small shell process that reads from a pipe: when the pipe ends,
//! its writer is gone, and the shell stops the servers and removes their folder.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Started with the cluster's folder as `$1`. "done" says that nothing is left to do.
const SCRIPT: &str = r#"
read -r word
[ "$word" = done ] && exit 0
for file in "$1"/*/postmaster.pid; do
    [ -f "$file" ] || continue
    read -r pid < "$file"
    kill -QUIT "$pid"
    kill -CONT "$pid"
    tries=0
    while [ -f "$file" ] && [ "$tries" -lt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
done
rm -rf "$1"
"#;

pub(super) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    pub(super) fn start(base: &Path) -> Self {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(base)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own group, or Ctrl-C would end it together with the test.
            .process_group(0)
            .spawn()
            .expect("sh can be started");
        Self { shell }
    }

    /// The cluster was cleaned up, or is to be kept.
    pub(super) fn dismiss(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // A shell that is gone already does not need to be told.
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.shell.wait();
    }
}
