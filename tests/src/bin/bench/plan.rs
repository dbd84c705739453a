//! Who is measured, and how each is called. Decides nothing about how.

use std::env;
use std::path::{Path, PathBuf};

use harness::Error;

use crate::connect;

/// Names a folder of Kafka Connect plugins that are ours neither to ship nor to fetch.
const PLUGINS: &str = "TRIBUTARY_BENCH_PLUGINS";

/// How a system is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As it comes.
    Default,
    /// As those who run it at a high rate set it.
    Tuned,
}

/// A system under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// Ours.
    Tributary,
    /// PostgreSQL's own reader of a slot: the walsender's limit.
    PgRecvlogical,
    /// PostgreSQL's own subscription: the limit of applying row by row, with no Kafka between.
    Native,
    /// Debezium's source connector, JSON without schemas.
    Debezium(Profile),
    /// Debezium's source connector, JSON with schemas: what its JDBC sink can read.
    DebeziumSchemas,
    /// Debezium's JDBC sink connector; for the way from commit to row, source and sink in one worker.
    DebeziumJdbc(Profile),
}

impl System {
    /// As it stands in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Tributary => "tributary",
            System::PgRecvlogical => "pg_recvlogical",
            System::Native => "native",
            System::Debezium(Profile::Default) => "debezium",
            System::Debezium(Profile::Tuned) => "debezium-tuned",
            System::DebeziumSchemas => "debezium-schemas",
            System::DebeziumJdbc(Profile::Default) => "debezium-jdbc",
            System::DebeziumJdbc(Profile::Tuned) => "debezium-jdbc-tuned",
        }
    }

    /// Whether others are measured against it.
    pub(crate) fn is_limit(self) -> bool {
        matches!(self, System::PgRecvlogical | System::Native)
    }
}

/// The systems by what is measured, limits first.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: Vec<System>,
    pub(crate) apply: Vec<System>,
    pub(crate) to_record: Vec<System>,
    pub(crate) to_row: Vec<System>,
    /// Where Kafka Connect finds its plugins, if there are any to measure.
    pub(crate) plugins: Vec<PathBuf>,
    /// What a reader should know.
    pub(crate) notes: Vec<String>,
}

impl Plan {
    /// The systems, and what they need fetched.
    pub(crate) fn new(peers: bool) -> Result<Plan, Error> {
        let mut plan = Plan {
            source: vec![System::PgRecvlogical, System::Tributary],
            apply: vec![System::Native, System::Tributary],
            to_record: vec![System::PgRecvlogical, System::Tributary],
            to_row: vec![System::Native, System::Tributary],
            plugins: Vec::new(),
            notes: Vec::new(),
        };
        if peers {
            plan.plugins.push(connect::fetch()?);
            let sources = [System::Debezium(Profile::Default), System::Debezium(Profile::Tuned)];
            plan.source.extend(sources);
            plan.to_record.extend(sources);
            plan.add_sinks()?;
        }
        Ok(plan)
    }

    fn add_sinks(&mut self) -> Result<(), Error> {
        let Some(folder) = env::var_os(PLUGINS) else {
            self.notes.push(format!(
                "Debezium's JDBC sink is not measured: no registry serves it; {PLUGINS}=FOLDER takes a Connect plugin folder that holds it"
            ));
            return Ok(());
        };
        let folder = Path::new(&folder).canonicalize();
        let folder = folder.map_err(Error::during(format!("look at the plugin folder in {PLUGINS}")))?;
        self.plugins.push(folder);
        let sinks = [System::DebeziumJdbc(Profile::Default), System::DebeziumJdbc(Profile::Tuned)];
        self.apply.extend(sinks);
        self.to_row.extend(sinks);
        self.source.push(System::DebeziumSchemas);
        Ok(())
    }
}
