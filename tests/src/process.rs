//! One process of ours: in a group of its own, its output in a file, signalled as an operator would, and gone when we are.

mod tributary;

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::until::until;
use crate::{Error, supervisor};

pub use tributary::{Output, Part, Tributary, run};

/// A running process, or one that has ended and whose log can still be read.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    group: Pid,
    log: PathBuf,
    abandon: Signal,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` with both outputs appended to `log`. `abandon` is the signal for when its work is thrown away with it.
    pub fn spawn(name: &str, mut command: Command, log: &Path, abandon: Signal) -> Result<Process, Error> {
        let output = File::options().create(true).append(true).open(log);
        let output = output.map_err(Error::during(format!("open {}", log.display())))?;
        let errors = output.try_clone().map_err(Error::during(format!("open {}", log.display())))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(Error::during(format!("start {name} ({})", command.get_program().display())))?;
        let group = Pid::from_raw(child.id() as i32);
        supervisor::watch_group(group, abandon);
        Ok(Process { name: name.to_owned(), child, group, log: log.to_owned(), abandon, ended: None })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The file with everything that it printed.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child of ours can be waited for");
            if self.ended.is_some() {
                supervisor::forget_group(self.group);
            }
        }
        self.ended
    }

    /// Sends a signal to every process of its group.
    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            // It may end between the question and the signal: that is no failure.
            let _ = signal::killpg(self.group, signal);
        }
    }

    /// Waits for its end.
    pub async fn wait(&mut self, within: Duration) -> Result<ExitStatus, Error> {
        let what = format!("{} has ended", self.name);
        until(&what, within, async || self.ended().ok_or_else(|| "it runs".to_owned())).await
    }

    /// Asks it by `signal` to end and waits. It must be gone within `grace`: if not it is killed, and that is an error.
    pub async fn stop(&mut self, signal: Signal, grace: Duration) -> Result<ExitStatus, Error> {
        self.signal(signal);
        let outcome = self.wait(grace).await;
        if outcome.is_err() {
            self.kill9().await?;
        }
        outcome
    }

    /// `kill -9`.
    pub async fn kill9(&mut self) -> Result<(), Error> {
        self.signal(Signal::SIGKILL);
        self.wait(Duration::from_secs(10)).await.map(|_| ())
    }

    /// The end of its log, for a message about a failure.
    pub fn tail(&self) -> String {
        tail(&self.log, 40)
    }
}

/// Kills without waiting for anybody's grace: what this process worked on goes with it.
impl Drop for Process {
    fn drop(&mut self) {
        self.signal(self.abandon);
        self.signal(Signal::SIGCONT);
        let deadline = Instant::now() + Duration::from_secs(3);
        while self.ended().is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        self.signal(Signal::SIGKILL);
        if self.ended.is_none() {
            self.ended = self.child.wait().ok();
            supervisor::forget_group(self.group);
        }
    }
}

/// The last `lines` lines of a file, or why there are none.
pub fn tail(file: &Path, lines: usize) -> String {
    match std::fs::read(file) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(cause) => format!("{}: {cause}", file.display()),
    }
}

/// `exit code 2`, `signal 9`.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
