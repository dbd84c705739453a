//! Redis as a target: notices and progress in one script, on a single primary, so that a replay announces nothing twice.
//!
//!     batch.lua: progress compared ──▶ XADD, PUBLISH … up to the first that fails ──▶ progress set to what stands before it
//!
//! A script that fails keeps what it did, which is why it stops and says how far it came.

mod notices;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, Script};
use schemas::{Selection, Seq};
use tokio::sync::Mutex;

use crate::batch::{Batch, Progress};
use crate::config::{Announce, Group, Redis};
use crate::error::Error;
use crate::parked::ParkedKeys;
use crate::record::Partition;
use crate::target::{Claim, Claimed, Done, Outcome, Target};
use notices::{Notices, Writer};

/// The longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait for the answer of one script.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The Redis of one group.
pub(crate) struct Announcer {
    group: String,
    /// Which tables it announces: a topic may hold others beside them.
    tables: Selection,
    prefix: String,
    owner: String,
    config: Announce,
    address: String,
    client: redis::Client,
    connection: Mutex<Option<MultiplexedConnection>>,
    claim: Script,
    batch: Script,
}

/// The hash that holds the progress of one partition of one group.
pub(crate) fn progress_key(prefix: &str, group: &str, partition: &Partition) -> String {
    format!("tributary:{prefix}:{group}:{partition}")
}

impl Announcer {
    pub(crate) fn new(
        group: &Group,
        prefix: &str,
        owner: &str,
        config: &Announce,
        redis: &Redis,
    ) -> Result<Announcer, Error> {
        let refused = |cause| Error::Redis { operation: "make a client", address: redis.address.clone(), cause };
        Ok(Announcer {
            group: group.name.clone(),
            tables: group.tables.clone(),
            prefix: prefix.to_owned(),
            owner: owner.to_owned(),
            config: config.clone(),
            address: redis.address.clone(),
            client: redis::Client::open(redis.url.expose()).map_err(refused)?,
            connection: Mutex::default(),
            claim: Script::new(include_str!("announce/claim.lua")),
            batch: Script::new(include_str!("announce/batch.lua")),
        })
    }

    /// Connects once, to see that this is what the group needs.
    pub(crate) async fn open(&self) -> Result<(), Error> {
        self.connection().await.map(drop)
    }

    fn failed(&self, operation: &'static str, cause: RedisError) -> Error {
        Error::Redis { operation, address: self.address.clone(), cause }
    }

    /// The connection, made and looked at if there is none.
    async fn connection(&self) -> Result<MultiplexedConnection, Error> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = &*kept {
            return Ok(connection.clone());
        }
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        let connected = self.client.get_multiplexed_async_connection_with_config(&settings).await;
        let mut connection = connected.map_err(|cause| self.failed("connect", cause))?;
        let info: String = redis::cmd("INFO")
            .query_async(&mut connection)
            .await
            .map_err(|cause| self.failed("ask for its role", cause))?;
        let has = |line: &str| info.lines().any(|found| found.trim_end() == line);
        if has("cluster_enabled:1") {
            return Err(Error::NoPrimary { address: self.address.clone(), found: "is part of a cluster".to_owned() });
        }
        if !has("role:master") {
            // A failover may be under way; a replica by configuration stays one, and this is said again and again.
            let cause = RedisError::from((redis::ErrorKind::Io, "it is a replica at the moment"));
            return Err(self.failed("announce", cause));
        }
        Ok(kept.insert(connection).clone())
    }

    /// Runs a script. After a failure nobody knows what the connection's state is: the next one is new.
    async fn invoke(
        &self,
        operation: &'static str,
        script: &Script,
        key: &str,
        words: impl Iterator<Item = &[u8]> + Send,
    ) -> Result<Vec<String>, Error> {
        let mut connection = self.connection().await?;
        let mut invocation = script.key(key);
        for word in words {
            invocation.arg(word);
        }
        let answer = invocation.invoke_async(&mut connection).await;
        if answer.is_err() {
            *self.connection.lock().await = None;
        }
        answer.map_err(|cause| self.failed(operation, cause))
    }

    fn outcome(&self, answer: &[String], claim: &Claim, batch: &Batch, notices: &Notices) -> Result<Outcome, Error> {
        let word = |index: usize| answer.get(index).map(String::as_str).unwrap_or_default();
        let done = Done { applied: notices.announced, skipped: notices.skipped, ..Done::default() };
        match word(0) {
            "done" => Ok(Outcome::Done(done)),
            // The answer to an earlier attempt was lost.
            "moved" if word(1) == batch.to.next_offset.to_string() => Ok(Outcome::Done(done)),
            "failed" => {
                let offset = word(1).parse().unwrap_or(batch.from.next_offset);
                let error = Error::Announce {
                    address: self.address.clone(),
                    partition: claim.partition.clone(),
                    offset,
                    answer: word(2).to_owned(),
                };
                let stands = batch.records().take_while(|record| record.offset < offset).last();
                Ok(Outcome::Part(stands.map_or(batch.from, |record| Progress::after(&record)), error))
            }
            // Below where we stood: another primary took over and had less. Above, or another claim: somebody else is at work.
            other => {
                let (group, partition) = (&self.group, &claim.partition);
                tracing::warn!(%group, %partition, found = other, "Redis does not stand where this process left it, going back to what it has");
                Ok(Outcome::Lost)
            }
        }
    }
}

impl Target for Announcer {
    type Prepared = Notices;

    /// Announcing everything again would say what was said.
    const ASKS_KAFKA: bool = true;

    async fn claim(&self, partition: &Partition, kafka: Option<i64>) -> Result<Claimed, Error> {
        let key = progress_key(&self.prefix, &self.group, partition);
        let may_begin = if kafka.is_none() { "1" } else { "0" };
        let words = [self.owner.as_bytes(), may_begin.as_bytes()];
        let found = self.invoke("claim a partition", &self.claim, &key, words.into_iter()).await?;
        let word = |index: usize| found.get(index).map(String::as_str).unwrap_or_default();
        let lost = || Error::ProgressLost {
            address: self.address.clone(),
            group: self.group.clone(),
            partition: partition.clone(),
            offset: kafka.unwrap_or_default(),
            key: key.clone(),
        };
        let number = |index: usize| word(index).parse::<i64>().map_err(|_| lost());
        let claim = Claim { partition: partition.clone(), number: number(0)? };
        let progress = Progress {
            next_offset: number(1)?,
            last_offset: number(2)?,
            seq: Seq(number(3)?.cast_unsigned()),
            position: word(4).parse().map_err(|_| lost())?,
        };
        Ok(Claimed { claim, progress, parked: ParkedKeys::default() })
    }

    fn prepare(&self, partition: &Partition, batch: &Batch, _parked: &ParkedKeys) -> Result<Notices, Error> {
        Writer { config: &self.config, tables: &self.tables, prefix: &self.prefix, partition }.notices(batch)
    }

    async fn refresh(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn apply(
        &self,
        claim: &Claim,
        batch: &Batch,
        notices: &Notices,
        _parked: &ParkedKeys,
    ) -> Result<Outcome, Error> {
        let key = progress_key(&self.prefix, &self.group, &claim.partition);
        let fence = [claim.number.to_string(), batch.from.next_offset.to_string()];
        let words = fence.iter().map(String::as_bytes).chain(notices.words.iter().map(Vec::as_slice));
        let answer = self.invoke("announce a batch", &self.batch, &key, words).await?;
        self.outcome(&answer, claim, batch, notices)
    }

    /// A notice is never set aside.
    async fn standing(&self, _: &Partition) -> Result<ParkedKeys, Error> {
        Ok(ParkedKeys::default())
    }

    async fn report(&self, claim: &Claim, problem: &str) {
        let key = progress_key(&self.prefix, &self.group, &claim.partition);
        let Ok(mut connection) = self.connection().await else { return };
        let said = redis::cmd("HSET").arg(key).arg("error").arg(problem).query_async::<i64>(&mut connection).await;
        if let Err(error) = said {
            tracing::debug!(group = %self.group, partition = %claim.partition, %error, "could not say in Redis what the matter is");
        }
    }
}

impl std::fmt::Debug for Announcer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announcer").field("group", &self.group).field("address", &self.address).finish_non_exhaustive()
    }
}
