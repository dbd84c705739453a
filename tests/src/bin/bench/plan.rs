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
    /// `COPY TO STDOUT`: the limit of reading a table.
    Copy,
    /// Ours with so many readers of the snapshot: 1, 2 or 4.
    Readers(u8),
    /// Ours with the rows in so many tables: 10, 100 or 1000.
    Tables(u16),
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
            System::Copy => "copy",
            System::Readers(1) => "tributary-1-reader",
            System::Readers(2) => "tributary-2-readers",
            System::Readers(_) => "tributary-4-readers",
            System::Tables(10) => "tributary-10-tables",
            System::Tables(100) => "tributary-100-tables",
            System::Tables(_) => "tributary-1000-tables",
            System::Debezium(Profile::Default) => "debezium",
            System::Debezium(Profile::Tuned) => "debezium-tuned",
            System::DebeziumSchemas => "debezium-schemas",
            System::DebeziumJdbc(Profile::Default) => "debezium-jdbc",
            System::DebeziumJdbc(Profile::Tuned) => "debezium-jdbc-tuned",
        }
    }

    /// Whether others are measured against it.
    pub(crate) fn is_limit(self) -> bool {
        matches!(self, System::PgRecvlogical | System::Native | System::Copy)
    }
}

/// The systems by what is measured, limits first.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: Vec<System>,
    pub(crate) apply: Vec<System>,
    pub(crate) to_record: Vec<System>,
    pub(crate) to_row: Vec<System>,
    pub(crate) snapshot: Vec<System>,
    pub(crate) snapshot_to_row: Vec<System>,
    /// Where Kafka Connect finds its plugins, if there are any to measure.
    pub(crate) plugins: Vec<PathBuf>,
    /// What a reader should know.
    pub(crate) notes: Vec<String>,
}

impl Plan {
    /// The systems, and what they need fetched.
    pub(crate) fn new(peers: bool, scaling: bool) -> Result<Plan, Error> {
        let mut plan = Plan {
            source: vec![System::PgRecvlogical, System::Tributary],
            apply: vec![System::Native, System::Tributary],
            to_record: vec![System::PgRecvlogical, System::Tributary],
            to_row: vec![System::Native, System::Tributary],
            snapshot: vec![System::Copy, System::Tributary],
            snapshot_to_row: vec![System::Native, System::Tributary],
            plugins: Vec::new(),
            notes: Vec::new(),
        };
        if scaling {
            plan.snapshot.extend([1, 2, 4].map(System::Readers));
            plan.snapshot.extend([10, 100, 1000].map(System::Tables));
        }
        if peers {
            plan.plugins.push(connect::fetch()?);
            let sources = [System::Debezium(Profile::Default), System::Debezium(Profile::Tuned)];
            plan.source.extend(sources);
            plan.snapshot.extend(sources);
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
