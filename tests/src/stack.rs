//! The servers that all tests of a run share, and how a test finds them: `TRIBUTARY_TEST_*` in its environment.
//!
//! `stack run -- COMMAND` starts them once and hands the addresses on; each test then makes databases, topics and groups of its own there.

use std::env;

use crate::Error;
use crate::servers::{Durability, Kafka, Postgres, PostgresAddress, Redis, RedisAddress};

const POSTGRES: &str = "TRIBUTARY_TEST_POSTGRES_PORT";
const KAFKA: &str = "TRIBUTARY_TEST_KAFKA";
const REDIS: &str = "TRIBUTARY_TEST_REDIS_PORT";

/// One server of each kind, running.
#[derive(Debug)]
pub struct Stack {
    /// Both databases of every test live here.
    pub postgres: Postgres,
    /// One broker.
    pub kafka: Kafka,
    /// Redis, which forgets everything when it stops.
    pub redis: Redis,
}

impl Stack {
    /// Starts all three at the same time.
    pub async fn start() -> Result<Stack, Error> {
        let (postgres, kafka, redis) =
            tokio::try_join!(Postgres::start(Durability::Relaxed), Kafka::start(1), Redis::start(Durability::Relaxed))?;
        Ok(Stack { postgres, kafka, redis })
    }

    /// An orderly end of all three.
    pub async fn stop(mut self) -> Result<(), Error> {
        tokio::try_join!(self.postgres.stop(), self.kafka.stop(), self.redis.stop())?;
        Ok(())
    }

    /// Where they answer.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            postgres: self.postgres.address().clone(),
            kafka: self.kafka.addresses(),
            redis: self.redis.address().clone(),
        }
    }
}

/// Where the shared servers answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// PostgreSQL.
    pub postgres: PostgresAddress,
    /// Kafka, as `host:port,…`.
    pub kafka: String,
    /// Redis.
    pub redis: RedisAddress,
}

impl Addresses {
    /// The variables by which a test finds the servers.
    pub fn variables(&self) -> [(&'static str, String); 3] {
        [(POSTGRES, self.postgres.port.to_string()), (KAFKA, self.kafka.clone()), (REDIS, self.redis.port.to_string())]
    }

    /// What `stack run` has put into the environment.
    pub fn of_this_run() -> Result<Addresses, Error> {
        let read = |name| {
            env::var(name).map_err(|_| {
                Error::new(format!(
                    "{name} is not set: these tests need real servers. Use `./dev test [FILTER]`, which starts them"
                ))
            })
        };
        let port = |name| read(name)?.parse().map_err(Error::during(format!("read the port in {name}")));
        Ok(Addresses {
            postgres: PostgresAddress { port: port(POSTGRES)? },
            kafka: read(KAFKA)?,
            redis: RedisAddress { port: port(REDIS)? },
        })
    }
}
