//! The servers of trials that follow each other: one PostgreSQL, perhaps with a standby, one broker, and a proxy before each.

use crate::Error;
use crate::port;
use crate::proxy::{Proxy, Way};
use crate::servers::{Door, Durability, Kafka, Postgres, PostgresAddress};

use super::plan::{Manner, Side};

/// A frozen reader is taken for dead after three seconds; 60 by default.
const SETTINGS: [(&str, &str); 2] = [("wal_sender_timeout", "3s"), ("max_wal_size", "1GB")];
/// Which PostgreSQL has a standby: standbys take logical slots along since 17, and 18 is the one with all that this needs.
const MAJOR_OF_PAIR: u32 = 18;

/// One PostgreSQL and one broker, each to be reached by itself and through a proxy.
#[derive(Debug)]
pub struct Lane {
    postgres: Postgres,
    /// Takes the place of the other when that is gone.
    standby: Option<Postgres>,
    kafka: Kafka,
    /// Leads to whichever PostgreSQL is the primary.
    to_primary: Proxy,
    to_postgres: Proxy,
    to_kafka: Proxy,
}

impl Lane {
    /// Starts both.
    pub async fn start() -> Result<Lane, Error> {
        Lane::start_with(Postgres::start_with(Durability::Full, &SETTINGS).await?, None).await
    }

    /// The same with a standby, that takes logical slots along and gets every change before anybody else.
    pub async fn start_pair() -> Result<Lane, Error> {
        let settings = [&SETTINGS[..], &[("synchronized_standby_slots", "standby")]].concat();
        let primary = Postgres::start_major(MAJOR_OF_PAIR, Durability::Full, &settings).await?;
        // A standby that waits for itself once it is the primary would wait for ever.
        let settings = [("sync_replication_slots", "on"), ("synchronized_standby_slots", "")];
        let standby = primary.standby("standby", &settings).await?;
        Lane::start_with(primary, Some(standby)).await
    }

    async fn start_with(postgres: Postgres, standby: Option<Postgres>) -> Result<Lane, Error> {
        let door = port::free();
        let to_kafka = Proxy::start(door).await?;
        let kafka = Kafka::start_behind(Door { port: door, advertised: to_kafka.port() }).await?;
        let to_primary = Proxy::start(postgres.address().port).await?;
        let to_postgres = Proxy::start(postgres.address().port).await?;
        Ok(Lane { postgres, standby, kafka, to_primary, to_postgres, to_kafka })
    }

    /// An orderly end.
    pub async fn stop(mut self) -> Result<(), Error> {
        tokio::try_join!(self.postgres.stop(), self.kafka.stop())?;
        match &mut self.standby {
            Some(standby) => standby.stop().await,
            None => Ok(()),
        }
    }

    /// The database server as the source reaches it.
    pub fn postgres_by_proxy(&self) -> PostgresAddress {
        PostgresAddress { port: self.to_postgres.port() }
    }

    /// The broker as the source reaches it.
    pub fn kafka_by_proxy(&self) -> String {
        format!("127.0.0.1:{}", self.to_kafka.port())
    }

    /// The primary as everybody else reaches it, whichever server that is.
    pub fn postgres(&self) -> PostgresAddress {
        PostgresAddress { port: self.to_primary.port() }
    }

    /// The broker as everybody else reaches it.
    pub fn kafka(&self) -> String {
        self.kafka.addresses()
    }

    /// The standby, if there is one that can be promoted.
    pub fn standby(&self) -> Option<&Postgres> {
        self.standby.as_ref()
    }

    /// A standby of the primary, by this name. Whoever asks for it keeps it.
    pub async fn follow(&self, name: &str) -> Result<Postgres, Error> {
        self.postgres.standby(name, &[]).await
    }

    /// The primary is gone for good, and its standby takes its place under its address.
    pub async fn fail_over(&mut self) -> Result<(), Error> {
        let mut standby = self.standby.take().ok_or_else(|| Error::new("this lane has no standby"))?;
        self.postgres.kill9().await?;
        standby.promote().await?;
        let port = standby.address().port;
        self.to_primary.lead_to(port);
        self.to_postgres.lead_to(port);
        self.postgres = standby;
        Ok(())
    }

    /// How the source's connections to one side fare from now on.
    pub fn set(&self, side: Side, way: Way) {
        match side {
            Side::Postgres => self.to_postgres.set(way),
            Side::Kafka => self.to_kafka.set(way),
        }
    }

    /// The broker goes and comes back.
    pub async fn lose_broker(&mut self, manner: Manner) -> Result<(), Error> {
        match manner {
            Manner::InOrder => self.kafka.stop().await?,
            Manner::Killed => self.kafka.kill9().await?,
        }
        self.kafka.restart().await
    }

    /// The database server goes and comes back.
    pub async fn lose_server(&mut self, manner: Manner) -> Result<(), Error> {
        match manner {
            Manner::InOrder => self.postgres.stop().await?,
            Manner::Killed => self.postgres.kill9().await?,
        }
        self.postgres.restart().await
    }
}
