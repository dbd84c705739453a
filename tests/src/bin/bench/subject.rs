//! A system that runs: its process, whether it still does its work, and its end.

use std::time::Duration;

use harness::Error;
use harness::process::{Process, Tributary, describe};
use harness::servers::{Postgres, Role};
use harness::until::until;
use nix::sys::signal::Signal;
use tokio_postgres::Client;

use crate::connect::Worker;
use crate::load::{self, BENCH};

/// How long a system may take to end when asked.
const GRACE: Duration = Duration::from_secs(30);

/// A running system.
pub(crate) enum Subject {
    Tributary(Tributary),
    Command(Process),
    Worker(Worker),
    Subscription(Subscription),
}

/// PostgreSQL's own subscription on the target. Its apply worker is the process that counts.
pub(crate) struct Subscription {
    client: Client,
    worker: u32,
}

impl Subject {
    /// The process whose CPU and memory count.
    pub(crate) fn process_id(&self) -> u32 {
        match self {
            Subject::Tributary(tributary) => tributary.id(),
            Subject::Command(process) => process.id(),
            Subject::Worker(worker) => worker.process_id(),
            Subject::Subscription(subscription) => subscription.worker,
        }
    }

    /// Why it does not work any more, if so.
    pub(crate) fn fault(&mut self) -> Option<String> {
        match self {
            Subject::Tributary(tributary) => {
                let status = tributary.ended()?;
                Some(format!("tributary ended by itself, {}; its log ends:\n{}", describe(status), tributary.tail()))
            }
            Subject::Command(process) => {
                let status = process.ended().filter(|status| !status.success())?;
                Some(format!("it ended, {}: {}", describe(status), process.tail()))
            }
            Subject::Worker(worker) => worker.fault(),
            // A failed worker is started anew by the server, and stands still until then.
            Subject::Subscription(_) => None,
        }
    }

    /// Asks it to end, and waits.
    pub(crate) async fn stop(self) -> Result<(), Error> {
        match self {
            Subject::Tributary(mut tributary) => match tributary.ended() {
                Some(_) => Ok(()),
                None => tributary.stop().await,
            },
            Subject::Command(mut process) => process.stop(Signal::SIGINT, GRACE).await.map(|_| ()),
            Subject::Worker(worker) => worker.stop(GRACE).await,
            Subject::Subscription(subscription) => subscription.stop().await,
        }
    }
}

impl Subscription {
    /// Subscribes to the publication through a slot that is there already, with or without the rows at rest.
    pub(crate) async fn start(
        target: &Postgres,
        source: &Postgres,
        slot: &str,
        copy_data: bool,
    ) -> Result<Subscription, Error> {
        let client = load::connect(target).await?;
        let from = source.address().url_with_password(Role::Superuser, BENCH);
        let subscribe = format!(
            "CREATE SUBSCRIPTION {BENCH} CONNECTION '{from}' PUBLICATION {BENCH} \
             WITH (create_slot = false, slot_name = '{slot}', copy_data = {copy_data})"
        );
        client.batch_execute(&subscribe).await.map_err(Error::during("subscribe"))?;
        let read = "SELECT pid FROM pg_stat_subscription WHERE relid IS NULL AND pid IS NOT NULL";
        let worker: i32 = until("the subscription's worker runs", Duration::from_secs(30), async || {
            let row = client.query_opt(read, &[]).await.map_err(|cause| cause.to_string())?;
            row.map(|row| row.get(0)).ok_or_else(|| "there is none".to_owned())
        })
        .await?;
        Ok(Subscription { client, worker: worker.unsigned_abs() })
    }

    async fn stop(self) -> Result<(), Error> {
        for statement in ["DISABLE", "SET (slot_name = NONE)"] {
            load::run(&self.client, &format!("ALTER SUBSCRIPTION {BENCH} {statement}")).await?;
        }
        load::run(&self.client, &format!("DROP SUBSCRIPTION {BENCH}")).await
    }
}
