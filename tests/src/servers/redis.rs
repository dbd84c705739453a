//! A private Redis.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use super::{ANSWER_WITHIN, Durability, folder};
use crate::process::{Process, describe};
use crate::until::until;
use crate::{Error, port};

/// As many databases as a run may have tests.
const DATABASES: &str = "1000";

/// Where a Redis answers, whoever has started it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its port on 127.0.0.1.
    pub port: u16,
}

impl Address {
    /// `redis://127.0.0.1:port/database`.
    pub fn url(&self, database: u32) -> String {
        format!("redis://127.0.0.1:{}/{database}", self.port)
    }

    /// A connection to one of its databases.
    pub async fn connect(&self, database: u32) -> Result<MultiplexedConnection, Error> {
        let url = self.url(database);
        let client = redis::Client::open(url.as_str()).map_err(Error::during(format!("read {url}")))?;
        // The default of half a second is for a machine that has nothing else to do.
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN));
        let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
        connection.map_err(Error::during(format!("connect to {url}")))
    }
}

/// A running (or stopped) private server.
#[derive(Debug)]
pub struct Redis {
    address: Address,
    folder: TempDir,
    durability: Durability,
    process: Option<Process>,
}

impl Redis {
    /// An empty server, answering.
    pub async fn start(durability: Durability) -> Result<Redis, Error> {
        let address = Address { port: port::free() };
        let mut server = Redis { address, folder: folder("redis")?, durability, process: None };
        server.restart().await?;
        Ok(server)
    }

    /// Where it answers.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The file with the server's log.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Starts it again with the same data on the same port, and waits until it answers. One that runs is stopped first.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.stop().await?;
        let append_only = if self.durability == Durability::Full { "yes" } else { "no" };
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &self.address.port.to_string(), "--bind", "127.0.0.1", "--databases", DATABASES])
            .args(["--save", "", "--appendonly", append_only, "--appendfsync", "always"])
            .arg("--dir")
            .arg(self.folder.path());
        let mut process = Process::spawn("Redis", command, &self.log(), Signal::SIGKILL)?;
        until("Redis answers", ANSWER_WITHIN, async || {
            if let Some(status) = process.ended() {
                return Ok(Err(Error::new(format!("Redis ended, {}: {}", describe(status), process.tail()))));
            }
            let mut connection = self.address.connect(0).await.map_err(|cause| format!("{cause:?}"))?;
            // Also while it still reads its append-only file it takes connections, and says so.
            let pong = redis::cmd("PING").query_async::<String>(&mut connection).await;
            pong.map(|_| Ok(())).map_err(|cause| cause.to_string())
        })
        .await??;
        self.process = Some(process);
        Ok(())
    }

    /// An orderly shutdown.
    pub async fn stop(&mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(mut process) => process.stop(Signal::SIGTERM, Duration::from_secs(20)).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// `kill -9`.
    pub async fn kill9(&mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(mut process) => process.kill9().await,
            None => Ok(()),
        }
    }

    /// Stops it where it stands (SIGSTOP).
    pub fn freeze(&mut self) {
        self.process.iter_mut().for_each(|process| process.signal(Signal::SIGSTOP));
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&mut self) {
        self.process.iter_mut().for_each(|process| process.signal(Signal::SIGCONT));
    }
}
