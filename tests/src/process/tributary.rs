//! The product as an operator runs it: the real binary with a configuration file, signals, exit codes and logs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Process, describe};
use crate::configuration::Configuration;
use crate::until::until;
use crate::{Error, place, port};

/// How long a process may take to drain after SIGTERM.
const GRACE: Duration = Duration::from_secs(30);

/// Which of the long-running commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `tributary source`
    Source,
    /// `tributary sink`
    Sink,
    /// `tributary run`: both in one process.
    Run,
}

impl Part {
    /// The command's name.
    pub fn name(self) -> &'static str {
        match self {
            Part::Source => "source",
            Part::Sink => "sink",
            Part::Run => "run",
        }
    }
}

/// A running (or ended) `tributary`.
#[derive(Debug)]
pub struct Tributary {
    name: String,
    part: Part,
    folder: PathBuf,
    configuration: Configuration,
    http: u16,
    process: Process,
}

/// What a command that ends by itself left behind.
#[derive(Debug)]
pub struct Output {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its answer.
    pub stdout: String,
    /// Its log.
    pub stderr: String,
}

impl Tributary {
    /// Starts a part under a name. Its file and log lie in `folder`, with the health endpoint on a port of its own.
    pub fn start(name: &str, part: Part, mut configuration: Configuration, folder: &Path) -> Result<Tributary, Error> {
        let http = port::free();
        configuration.set("http.listen", format!("127.0.0.1:{http}"));
        let process = spawn(name, part, &configuration, folder)?;
        Ok(Tributary { name: name.to_owned(), part, folder: folder.to_owned(), configuration, http, process })
    }

    /// Its name, as it was started.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its configuration file, as it started with it.
    pub fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.toml", self.name))
    }

    /// Runs a command that ends by itself, with this process's own configuration file as it is now.
    pub async fn command(&self, arguments: &[&str]) -> Result<Output, Error> {
        end_of(arguments, &self.configuration, &self.file()).await
    }

    /// Starts it again as it was, after it has ended. The log goes on in the same file.
    pub fn restart(&mut self) -> Result<(), Error> {
        if self.process.ended().is_none() {
            return Err(Error::new(format!("{} still runs and cannot be started again", self.name)));
        }
        self.process = spawn(&self.name, self.part, &self.configuration, &self.folder)?;
        Ok(())
    }

    /// The same with another configuration; its port stays.
    pub fn restart_with(&mut self, mut configuration: Configuration) -> Result<(), Error> {
        configuration.set("http.listen", format!("127.0.0.1:{}", self.http));
        self.configuration = configuration;
        self.restart()
    }

    /// SIGTERM, and waits: it drains and ends with exit code 0.
    pub async fn stop(&mut self) -> Result<(), Error> {
        let status = self.process.stop(Signal::SIGTERM, GRACE).await?;
        if status.success() {
            return Ok(());
        }
        let tail = self.process.tail();
        Err(Error::new(format!("{} answered SIGTERM with {}; its log ends:\n{tail}", self.name, describe(status))))
    }

    /// `kill -9`.
    pub async fn kill9(&mut self) -> Result<(), Error> {
        self.process.kill9().await
    }

    /// Any other signal.
    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Stops it where it stands (SIGSTOP).
    pub fn freeze(&mut self) {
        self.process.signal(Signal::SIGSTOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&mut self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// Waits for it to end by itself.
    pub async fn ends(&mut self, within: Duration) -> Result<ExitStatus, Error> {
        let outcome = self.process.wait(within).await;
        outcome.map_err(Error::during(format!("wait for the end of {}; its log ends:\n{}", self.name, self.tail())))
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Everything that it has logged so far, over all its lives.
    pub fn log(&self) -> String {
        fs::read(self.process.log()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        self.process.tail()
    }

    /// Waits until its log holds a text.
    pub async fn logs(&mut self, text: &str, within: Duration) -> Result<(), Error> {
        let what = format!("{} logs {text:?}", self.name);
        until(&what, within, async || if self.log().contains(text) { Ok(()) } else { Err(self.tail()) }).await
    }

    /// Waits until it says that it is ready (`/readyz`). An early end is reported at once.
    pub async fn ready(&mut self, within: Duration) -> Result<(), Error> {
        self.answers("/readyz", within).await
    }

    /// Waits until it says that it is alive (`/healthz`), whatever it is doing.
    pub async fn alive(&mut self, within: Duration) -> Result<(), Error> {
        self.answers("/healthz", within).await
    }

    async fn answers(&mut self, path: &str, within: Duration) -> Result<(), Error> {
        let what = format!("{} answers {path} with 200", self.name);
        until(&what, within, async || {
            if let Some(status) = self.process.ended() {
                let (name, tail) = (&self.name, self.process.tail());
                return Ok(Err(Error::new(format!("{name} ended, {}; its log ends:\n{tail}", describe(status)))));
            }
            let (code, body) = get(self.http, path).await.map_err(|cause| format!("{path}: {cause}"))?;
            if code == 200 { Ok(Ok(())) } else { Err(format!("{path}: {code} {body}; log:\n{}", self.process.tail())) }
        })
        .await?
    }

    /// What it answers under a path of its HTTP port: status code and body.
    pub async fn http(&self, path: &str) -> Result<(u16, String), Error> {
        get(self.http, path).await.map_err(Error::during(format!("ask {} for {path}", self.name)))
    }

    /// Its resident memory in bytes; 0 once it has ended.
    pub fn memory_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    }
}

/// Runs a command that ends by itself.
pub async fn run(arguments: &[&str], configuration: &Configuration, folder: &Path) -> Result<Output, Error> {
    let file = folder.join("command.toml");
    fs::write(&file, configuration.render()).map_err(Error::during(format!("write {}", file.display())))?;
    end_of(arguments, configuration, &file).await
}

async fn end_of(arguments: &[&str], configuration: &Configuration, file: &Path) -> Result<Output, Error> {
    let mut command = tokio::process::Command::from(product(configuration)?);
    command.args(arguments).arg("--config").arg(file).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output());
    let output = output.await.map_err(Error::during(format!("wait for the end of tributary {arguments:?}")))?;
    let output = output.map_err(Error::during(format!("run tributary {arguments:?}")))?;
    Ok(Output {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn spawn(name: &str, part: Part, configuration: &Configuration, folder: &Path) -> Result<Process, Error> {
    let file = folder.join(format!("{name}.toml"));
    fs::write(&file, configuration.render()).map_err(Error::during(format!("write {}", file.display())))?;
    let mut command = product(configuration)?;
    command.arg(part.name()).arg("--config").arg(&file);
    Process::spawn(name, command, &folder.join(format!("{name}.log")), Signal::SIGKILL)
}

/// The binary, with no variable of the test's own surroundings that it might take for its configuration.
fn product(configuration: &Configuration) -> Result<Command, Error> {
    let mut command = Command::new(place::tributary()?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TRIBUTARY_") {
            command.env_remove(name);
        }
    }
    command.envs(configuration.variables().iter().map(|(name, value)| (name, value)));
    command.env("RUST_BACKTRACE", "1");
    Ok(command)
}

/// One request, one answer, by hand: it is all that a health check needs.
async fn get(port: u16, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let code = answer.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    Ok((code, body))
}
