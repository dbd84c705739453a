//! Debezium in a Kafka Connect standalone worker: what is fetched for it, and how it is set up.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::process::{Process, describe};
use harness::servers::{PostgresAddress, Role, java_as_shipped};
use harness::{Error, place, port};
use nix::sys::signal::Signal;
use serde_json::{Map, Value, json};

use crate::load::{BENCH, TABLE, scripts};
use crate::plan::Profile;
use crate::say;
use crate::stage::Stage;

/// What the worker logs when it is over for a connector: its process goes on and looks healthy.
const SIGNS: [&str; 3] = ["Task is being killed", "unrecoverable exception", "FAILED to configure"];

/// Larger queue and batches, and a producer that waits 10 ms for 512 KiB and compresses.
const TUNED_SOURCE: [(&str, &str); 8] = [
    ("snapshot.fetch.size", "20480"),
    ("max.batch.size", "8192"),
    ("max.queue.size", "32768"),
    ("poll.interval.ms", "50"),
    ("producer.override.linger.ms", "10"),
    ("producer.override.batch.size", "524288"),
    ("producer.override.compression.type", "lz4"),
    ("producer.override.buffer.memory", "67108864"),
];

/// Large batches, four tasks, one row a key in a batch, one statement a batch.
const TUNED_SINK: [(&str, &str); 7] = [
    ("batch.size", "3000"),
    ("tasks.max", "4"),
    ("use.reduction.buffer", "true"),
    ("dialect.postgres.unnest.insert.enabled", "true"),
    ("consumer.override.max.poll.records", "3000"),
    ("consumer.override.max.partition.fetch.bytes", "10485760"),
    ("consumer.override.fetch.max.bytes", "52428800"),
];

/// A running worker.
pub(crate) struct Worker {
    process: Process,
}

/// Brings the connector by Maven, as stack/bench/pom.xml pins it. The folder in which Connect finds it.
pub(crate) fn fetch() -> Result<PathBuf, Error> {
    let (pom, plugins) = (scripts().join("pom.xml"), cache());
    let (jars, fetched) = (plugins.join("debezium-postgres"), plugins.join("pom.xml"));
    let read = |path: &Path| fs::read(path).map_err(Error::during(format!("read {}", path.display())));
    if read(&fetched).ok() == Some(read(&pom)?) {
        return Ok(plugins);
    }
    say("fetching Debezium's PostgreSQL connector by Maven");
    // What an interrupted one has left must not stay between the new.
    let _none = fs::remove_dir_all(&plugins);
    let run = Command::new("mvn")
        .args(["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"])
        // The worker has these itself; a second copy in the plugin would be loaded in its place, and differ in version.
        .arg("-DexcludeArtifactIds=kafka-clients,connect-api,slf4j-api")
        .arg(format!("-DoutputDirectory={}", jars.display()))
        .arg("-f")
        .arg(&pom)
        .status();
    let status = run.map_err(Error::during("run mvn (the Debian package is called maven)"))?;
    if !status.success() {
        return Err(Error::new(format!("Maven could not bring the connector, {}", describe(status))));
    }
    fs::copy(&pom, &fetched).map_err(Error::during(format!("write {}", fetched.display())))?;
    Ok(plugins)
}

/// What a source connector does about rows at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// It copies them.
    Copied,
    /// It publishes changes alone.
    Left,
}

/// The source connector's configuration.
pub(crate) fn source(stage: &Stage, slot: &str, profile: Profile, rows: Rows) -> Map<String, Value> {
    let own = [
        ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
        ("tasks.max", "1"),
        ("database.hostname", "127.0.0.1"),
        ("database.user", Role::Superuser.name()),
        ("database.password", Role::Superuser.password()),
        ("database.dbname", BENCH),
        ("plugin.name", "pgoutput"),
        ("publication.name", BENCH),
        ("publication.autocreate.mode", "disabled"),
        ("table.include.list", TABLE),
        ("snapshot.mode", if rows == Rows::Copied { "initial" } else { "no_data" }),
    ];
    let mut all = texts(&own);
    all.insert("name".into(), format!("{slot}-source").into());
    all.insert("database.port".into(), stage.source.address().port.to_string().into());
    all.insert("topic.prefix".into(), slot.into());
    all.insert("slot.name".into(), slot.into());
    if profile == Profile::Tuned {
        all.extend(texts(&TUNED_SOURCE));
    }
    all
}

/// The JDBC sink connector's configuration. Its name is its consumer group: it must be new each time.
pub(crate) fn sink(target: &PostgresAddress, topic: &str, name: &str, profile: Profile) -> Map<String, Value> {
    let own = [
        ("connector.class", "io.debezium.connector.jdbc.JdbcSinkConnector"),
        ("tasks.max", "1"),
        ("connection.username", Role::Superuser.name()),
        ("connection.password", Role::Superuser.password()),
        ("insert.mode", "upsert"),
        ("delete.enabled", "true"),
        ("primary.key.mode", "record_key"),
        ("schema.evolution", "none"),
        ("collection.name.format", "orders"),
    ];
    let mut all = texts(&own);
    let rewrite = if profile == Profile::Tuned { "?reWriteBatchedInserts=true" } else { "" };
    all.insert("name".into(), format!("{name}-sink").into());
    all.insert("topics".into(), topic.into());
    all.insert("connection.url".into(), format!("jdbc:postgresql://127.0.0.1:{}/{BENCH}{rewrite}", target.port).into());
    if profile == Profile::Tuned {
        all.extend(texts(&TUNED_SINK));
    }
    all
}

impl Worker {
    /// Starts one with these connectors. `schemas`: whether each record carries its own.
    pub(crate) fn start(
        stage: &Stage,
        name: &str,
        connectors: &[Map<String, Value>],
        schemas: bool,
    ) -> Result<Worker, Error> {
        let folder = stage.folder().join(format!("{name}-worker"));
        fs::create_dir_all(&folder).map_err(Error::during(format!("make {}", folder.display())))?;
        let write = |file: String, text: String| {
            let path = folder.join(file);
            fs::write(&path, text).map_err(Error::during(format!("write {}", path.display())))?;
            Ok::<PathBuf, Error>(path)
        };
        let converter = "org.apache.kafka.connect.json.JsonConverter";
        let properties = format!(
            "bootstrap.servers={}\noffset.storage.file.filename={}\nlisteners=http://127.0.0.1:{}\nplugin.path={}\n\
             plugin.discovery=service_load\nkey.converter={converter}\nvalue.converter={converter}\n\
             key.converter.schemas.enable={schemas}\nvalue.converter.schemas.enable={schemas}\n",
            stage.kafka.addresses(),
            folder.join("offsets").display(),
            port::free(),
            stage.plugins
        );
        let mut command = java_as_shipped("2g", &class_path()?, &folder);
        command
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .arg(write("worker.properties".into(), properties)?);
        for (number, connector) in connectors.iter().enumerate() {
            let text = json!({ "name": connector["name"], "config": connector }).to_string();
            command.arg(write(format!("connector{number}.json"), text)?);
        }
        Ok(Worker { process: Process::spawn(name, command, &folder.join("log"), Signal::SIGKILL)? })
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Why it does not work any more, if so.
    pub(crate) fn fault(&mut self) -> Option<String> {
        if let Some(status) = self.process.ended() {
            return Some(format!("the worker ended, {}: {}", describe(status), self.process.tail()));
        }
        let log = fs::read_to_string(self.process.log()).unwrap_or_default();
        log.lines().find(|line| SIGNS.iter().any(|sign| line.contains(sign))).map(str::to_owned)
    }

    /// Asks it to end. A JVM answers SIGTERM by its own code, which says nothing.
    pub(crate) async fn stop(mut self, grace: Duration) -> Result<(), Error> {
        self.process.stop(Signal::SIGTERM, grace).await.map(|_| ())
    }
}

fn cache() -> PathBuf {
    place::repository().join(".cache/bench/plugins")
}

/// Connect comes with Kafka's tools. What writes its log does not, and without it a failure would be mute.
fn class_path() -> Result<String, Error> {
    let jars = cache().join("debezium-postgres");
    let entries = fs::read_dir(&jars).map_err(Error::during(format!("read {}", jars.display())))?;
    let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let logging = names.find(|name| name.starts_with("log4j-slf4j-impl-"));
    let logging = logging.ok_or_else(|| Error::new(format!("no log4j-slf4j-impl in {}", jars.display())))?;
    Ok(format!("{}:{}", place::kafka()?, jars.join(logging).display()))
}

fn texts(pairs: &[(&str, &str)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect()
}
