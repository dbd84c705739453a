//! Making a world: what a test needs, and how it is laid out on the shared servers or on the test's own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rand::Rng;

use super::World;
use crate::configuration::Configuration;
use crate::servers::{Durability, Kafka, Postgres, PostgresAddress, Redis, Role};
use crate::stack::Addresses;
use crate::table::{Table, quote};
use crate::{Error, place, seed};

/// Redis databases are given out in turn: the tests of a run live in one process.
static REDIS_DATABASE: AtomicU32 = AtomicU32::new(1);

/// Which PostgreSQL a server of the test's own is.
#[derive(Clone, Copy, Debug)]
enum Major {
    /// The one of this run.
    UnderTest,
    /// This one.
    Named(u32),
}

/// What a test needs beyond a database on either side.
#[derive(Debug)]
pub struct Builder {
    tables: Vec<Table>,
    partitions: u32,
    redis_group: bool,
    publication: bool,
    own_source: Option<Major>,
    own_target: Option<Major>,
    target_beside_source: bool,
    own_redis: bool,
    own_brokers: usize,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            tables: Vec::new(),
            partitions: 4,
            redis_group: false,
            publication: true,
            own_source: None,
            own_target: None,
            target_beside_source: false,
            own_redis: false,
            own_brokers: 0,
        }
    }
}

impl Builder {
    /// Adds a table to both sides.
    #[must_use]
    pub fn table(mut self, table: Table) -> Builder {
        self.tables.push(table);
        self
    }

    /// Adds tables to both sides.
    #[must_use]
    pub fn tables(mut self, tables: impl IntoIterator<Item = Table>) -> Builder {
        self.tables.extend(tables);
        self
    }

    /// The partitions of every topic; 4 unless said.
    #[must_use]
    pub fn partitions(mut self, partitions: u32) -> Builder {
        self.partitions = partitions;
        self
    }

    /// A second group, `redis`, which publishes and fills streams.
    #[must_use]
    pub fn redis_group(mut self) -> Builder {
        self.redis_group = true;
        self
    }

    /// No publication: the test is about that.
    #[must_use]
    pub fn without_publication(mut self) -> Builder {
        self.publication = false;
        self
    }

    /// The source is a server of the test's own, so that it can be killed.
    #[must_use]
    pub fn own_source(mut self) -> Builder {
        self.own_source = Some(Major::UnderTest);
        self
    }

    /// The same, of this PostgreSQL whichever one is under test.
    #[must_use]
    pub fn own_source_major(mut self, major: u32) -> Builder {
        self.own_source = Some(Major::Named(major));
        self
    }

    /// The target is a server of the test's own.
    #[must_use]
    pub fn own_target(mut self) -> Builder {
        self.own_target = Some(Major::UnderTest);
        self
    }

    /// The same, of this PostgreSQL whichever one is under test.
    #[must_use]
    pub fn own_target_major(mut self, major: u32) -> Builder {
        self.own_target = Some(Major::Named(major));
        self
    }

    /// Source and target are two databases of one server of the test's own, of this PostgreSQL whichever one is under test.
    #[must_use]
    pub fn one_server(mut self, major: u32) -> Builder {
        self.target_beside_source = true;
        self.own_source_major(major)
    }

    /// Redis is the test's own.
    #[must_use]
    pub fn own_redis(mut self) -> Builder {
        self.own_redis = true;
        self
    }

    /// Kafka is the test's own, with so many brokers.
    #[must_use]
    pub fn own_kafka(mut self, brokers: usize) -> Builder {
        self.own_brokers = brokers;
        self
    }

    /// Makes it all.
    ///
    /// # Panics
    /// When a server is missing or refuses: there is nothing to test then.
    pub async fn start(self) -> World {
        match self.build().await {
            Ok(world) => world,
            Err(fault) => panic!("{fault:?}"),
        }
    }

    async fn build(self) -> Result<World, Error> {
        let began = Instant::now();
        let shared = Addresses::of_this_run()?;
        let seed = seed::draw();
        let prefix = prefix();
        println!("world {prefix}: seed {seed}, repeated by TRIBUTARY_SEED={seed}");
        let (own_source, own_target, own_redis, own_kafka) = tokio::try_join!(
            start(self.own_source),
            start(self.own_target),
            async { if self.own_redis { Redis::start(Durability::Full).await.map(Some) } else { Ok(None) } },
            async { if self.own_brokers > 0 { Kafka::start(self.own_brokers).await.map(Some) } else { Ok(None) } },
        )?;
        let address =
            |own: &Option<Postgres>| own.as_ref().map_or(shared.postgres.clone(), |own| own.address().clone());
        let folder = place::leavings(&prefix)?;
        let mut world = World {
            seed,
            configuration: Configuration::default(),
            source: address(&own_source),
            target: if self.target_beside_source { address(&own_source) } else { address(&own_target) },
            kafka: own_kafka.as_ref().map_or(shared.kafka.clone(), Kafka::addresses),
            redis: own_redis.as_ref().map_or(shared.redis.clone(), |own| own.address().clone()),
            redis_database: REDIS_DATABASE.fetch_add(1, Ordering::Relaxed),
            own_source,
            own_target,
            own_kafka,
            own_redis,
            tables: self.tables.clone(),
            prefix,
            folder,
            logs: Vec::new(),
            expected: Vec::new(),
            began,
            finished: false,
        };
        let made = self.lay_out(&mut world).await;
        // Should laying out have failed, that is the fault to tell.
        world.finished = made.is_err();
        made.map(|()| world)
    }

    async fn lay_out(&self, world: &mut World) -> Result<(), Error> {
        create_database(&world.source, &world.source_database()).await?;
        create_database(&world.target, &world.target_database()).await?;
        let source = world.source.connect(Role::Superuser, &world.source_database()).await?;
        let target = world.target.connect(Role::Superuser, &world.target_database()).await?;
        let run = async |client: &tokio_postgres::Client, sql: String| {
            client.batch_execute(&sql).await.map_err(Error::during(sql))
        };
        // The sink makes its schema for the progress itself.
        let database = quote(&world.target_database());
        run(&target, format!("GRANT CREATE ON DATABASE {database} TO {}", Role::Target.name())).await?;
        for table in &self.tables {
            run(&source, in_source(table)).await?;
            run(&target, in_target(table)).await?;
        }
        if self.publication && !self.tables.is_empty() {
            let tables: Vec<String> = self.tables.iter().map(Table::sql).collect();
            run(&source, format!("CREATE PUBLICATION {} FOR TABLE {}", quote(&world.slot()), tables.join(", ")))
                .await?;
        }
        world.configuration = self.configuration(world);
        Ok(())
    }

    fn configuration(&self, world: &World) -> Configuration {
        let mut configuration = Configuration::default();
        let brokers: Vec<String> = world.kafka.split(',').map(|broker| format!("kafka://{broker}")).collect();
        let replication = if self.own_brokers >= 3 { 3 } else { 1 };
        let tables: Vec<String> = self.tables.iter().map(|table| table.name.to_string()).collect();
        configuration
            .set("prefix", world.prefix.as_str())
            .set("kafka.brokers", brokers)
            .set("source.url", world.source.url(Role::Source, &world.source_database()))
            .set("source.tables", tables)
            .set("source.create", true)
            .set("source.topics.create", true)
            .set("source.topics.partitions", i64::from(self.partitions))
            .set("source.topics.replication", replication)
            .set("source.topics.min_insync_replicas", if replication == 3 { 2 } else { 1 })
            .set("target.url", world.target.url(Role::Target, &world.target_database()))
            .set("groups.rdb.to", "postgres")
            .set("groups.rdb.dead_letter_topic_create", true)
            .environment("TRIBUTARY_SOURCE__PASSWORD", Role::Source.password())
            .environment("TRIBUTARY_TARGET__PASSWORD", Role::Target.password());
        if self.redis_group {
            configuration
                .set("redis.url", world.redis.url(world.redis_database))
                .set("groups.redis.to", "redis")
                .set("groups.redis.mode", "both")
                .set("groups.redis.stream_length_max", 10_000_000)
                .set("groups.redis.dead_letter_topic_create", true);
        }
        configuration
    }
}

async fn start(major: Option<Major>) -> Result<Option<Postgres>, Error> {
    match major {
        None => Ok(None),
        Some(Major::UnderTest) => Postgres::start(Durability::Full).await.map(Some),
        Some(Major::Named(major)) => Postgres::start_major(major, Durability::Full, &[]).await.map(Some),
    }
}

async fn create_database(server: &PostgresAddress, name: &str) -> Result<(), Error> {
    let client = server.connect(Role::Superuser, "postgres").await?;
    let sql = format!("CREATE DATABASE {}", quote(name));
    client.batch_execute(&sql).await.map_err(Error::during(sql))
}

/// What makes a table in the source, with the rights that go with it.
pub(super) fn in_source(table: &Table) -> String {
    let (read, write) = (grants(table, Role::Source, "SELECT"), grants(table, Role::Application, "ALL"));
    format!("{}; {read}; {write}", table.ddl())
}

/// What makes a table in the target, with the rights that go with it.
pub(super) fn in_target(table: &Table) -> String {
    format!("{}; {}", table.ddl(), grants(table, Role::Target, "SELECT, INSERT, UPDATE, DELETE, TRUNCATE"))
}

fn grants(table: &Table, role: Role, rights: &str) -> String {
    let (schema, role) = (quote(&table.name.schema), role.name());
    format!("GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT {rights} ON {} TO {role}", table.sql())
}

/// The test's name, as its thread has it, and four digits: the same test may run twice on one stack.
fn prefix() -> String {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test").rsplit("::").next().unwrap_or("test");
    let name: String =
        test.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect();
    // PostgreSQL's names end at 63 bytes, and more is put before and behind.
    format!("{}_{:04x}", &name[..name.len().min(34)], rand::rng().random::<u16>())
}
