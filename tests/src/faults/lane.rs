//! The servers of trials that follow each other: one PostgreSQL, one broker, and a proxy before each.

use crate::Error;
use crate::port;
use crate::proxy::{Proxy, Way};
use crate::servers::{Door, Durability, Kafka, Postgres, PostgresAddress};

use super::plan::{Manner, Side};

/// One PostgreSQL and one broker, each to be reached by itself and through a proxy.
#[derive(Debug)]
pub struct Lane {
    postgres: Postgres,
    kafka: Kafka,
    to_postgres: Proxy,
    to_kafka: Proxy,
}

impl Lane {
    /// Starts both.
    pub async fn start() -> Result<Lane, Error> {
        let door = port::free();
        let to_kafka = Proxy::start(door).await?;
        let door = Door { port: door, advertised: to_kafka.port() };
        // A frozen reader is taken for dead after this; 60 s by default.
        let settings = [("wal_sender_timeout", "3s"), ("max_wal_size", "1GB")];
        let (postgres, kafka) =
            tokio::try_join!(Postgres::start_with(Durability::Full, &settings), Kafka::start_behind(door))?;
        let to_postgres = Proxy::start(postgres.address().port).await?;
        Ok(Lane { postgres, kafka, to_postgres, to_kafka })
    }

    /// An orderly end.
    pub async fn stop(mut self) -> Result<(), Error> {
        tokio::try_join!(self.postgres.stop(), self.kafka.stop())?;
        Ok(())
    }

    /// The database server as the source reaches it.
    pub fn postgres_by_proxy(&self) -> PostgresAddress {
        PostgresAddress { port: self.to_postgres.port() }
    }

    /// The broker as the source reaches it.
    pub fn kafka_by_proxy(&self) -> String {
        format!("127.0.0.1:{}", self.to_kafka.port())
    }

    /// The database server as everybody else reaches it.
    pub fn postgres(&self) -> &PostgresAddress {
        self.postgres.address()
    }

    /// The broker as everybody else reaches it.
    pub fn kafka(&self) -> String {
        self.kafka.addresses()
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
