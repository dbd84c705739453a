//! The parts that run for long: the source, the sink, or both in one process.
//!
//! Only sequences them: start, wait for a signal or for the first that cannot go on, stop all, wait for all.

use std::path::PathBuf;

use service::http::{Health, Server};
use service::shutdown::Shutdown;
use tokio_util::sync::CancellationToken;

use crate::Outcome;
use crate::configuration::Configuration;
use crate::failure::Failure;

/// Which parts run in this process.
#[derive(Debug)]
pub(crate) struct Parts {
    command: &'static str,
    has_source: bool,
    /// The sink's groups: none, some by name, or all when the list is empty.
    groups: Option<Vec<String>>,
}

impl Parts {
    pub(crate) fn source() -> Parts {
        Parts { command: "source", has_source: true, groups: None }
    }

    pub(crate) fn sink(groups: Vec<String>) -> Parts {
        Parts { command: "sink", has_source: false, groups: Some(groups) }
    }

    pub(crate) fn both(groups: Vec<String>) -> Parts {
        Parts { command: "run", has_source: true, groups: Some(groups) }
    }
}

/// Runs them until a signal, or until one cannot go on.
pub(crate) async fn run(configuration: Configuration, parts: Parts) -> Result<Outcome, Failure> {
    let source = if parts.has_source { Some(configuration.source(parts.command)?.clone()) } else { None };
    let sink = match &parts.groups {
        Some(names) => Some(chosen(&configuration, parts.command, names)?),
        None => None,
    };
    let listening = Shutdown::listen();
    let shutdown = listening.map_err(|cause| Failure::System { operation: "listen for signals", cause })?;
    let health = Health::new();
    let _server = match &configuration.http {
        Some(http) => Some(Server::start(http, health.clone(), shutdown.token()).await?),
        None => None,
    };
    let Configuration { file, prefix, kafka, .. } = configuration;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        prefix,
        brokers = kafka.brokers(),
        "starting {}",
        parts.command
    );
    let publish = async {
        let Some(source) = source else { return true };
        let run =
            source_thread((source, reread(file)), kafka.clone(), prefix.clone(), health.clone(), shutdown.token());
        ended("source", run.await, &shutdown)
    };
    let apply = async {
        let Some(sink) = sink else { return true };
        let run = sink::run(sink, kafka.clone(), prefix.clone(), health.clone(), shutdown.token());
        ended("sink", run.await.map_err(|error| service::chain(&error).to_string()), &shutdown)
    };
    let (published, applied) = tokio::join!(publish, apply);
    if published && applied {
        tracing::info!("stopped");
        return Ok(Outcome::Fine);
    }
    Err(Failure::Logged)
}

/// The sink's configuration with the groups asked for.
fn chosen(configuration: &Configuration, command: &'static str, names: &[String]) -> Result<sink::Config, Failure> {
    let mut sink = configuration.sink.clone();
    let known = sink.groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>().join(", ");
    if sink.groups.is_empty() {
        return Err(configuration.lacks("groups.NAME", command));
    }
    if let Some(name) = names.iter().find(|name| sink.groups.iter().all(|group| group.name != **name)) {
        return Err(Failure::NoGroup { file: configuration.file.clone(), name: name.clone(), known });
    }
    sink.groups.retain(|group| names.is_empty() || names.contains(&group.name));
    Ok(sink)
}

/// Logs how a part ended, and lets none of the others go on without it. True when it ended in order.
fn ended(part: &str, result: Result<(), String>, shutdown: &Shutdown) -> bool {
    if let Err(error) = &result {
        tracing::error!(part, "stopped: {error}");
    }
    shutdown.request();
    result.is_ok()
}

/// The way in which a source that runs reads its section again.
fn reread(file: PathBuf) -> source::Reread {
    source::Reread::new(move || {
        let read = Configuration::read(&file).and_then(|read| read.source("source").cloned());
        read.map_err(|fault| service::chain(&fault).to_string())
    })
}

/// The source has a thread with a runtime of its own: answering PostgreSQL must wait for nothing else in the process.
async fn source_thread(
    (config, reread): (source::Config, source::Reread),
    kafka: kafka::Config,
    prefix: String,
    health: Health,
    stop: CancellationToken,
) -> Result<(), String> {
    let (done, ended) = tokio::sync::oneshot::channel();
    let work = move || {
        let result = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("cannot start its runtime: {error}"))
            .and_then(|runtime| {
                let run = source::run(config, reread, kafka, prefix, health, stop);
                runtime.block_on(run).map_err(|error| service::chain(&error).to_string())
            });
        let _gone = done.send(result);
    };
    let spawned = std::thread::Builder::new().name("source".to_owned()).spawn(work);
    spawned.map_err(|error| format!("cannot start its thread: {error}"))?;
    ended.await.unwrap_or_else(|_| Err("its thread panicked: report this with the log".to_owned()))
}
