//! A private Kafka of one broker or three, by Java from the jars that `./dev` has laid ready. KRaft, no topic made by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tempfile::TempDir;

use super::{ANSWER_WITHIN, folder};
use crate::process::{Process, describe};
use crate::until::until;
use crate::{Error, place, port};

/// The JVM that a broker runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jvm {
    /// Small, and compiling little: there are several on two cores and none lives long.
    Small,
    /// Heap and collector as Kafka's own scripts set them, for whoever measures.
    AsShipped,
}

/// A second way in, which the broker names to whoever comes by it: a proxy stands before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Door {
    /// The port that the broker listens on.
    pub port: u16,
    /// The port that clients are sent to.
    pub advertised: u16,
}

/// One node of a cluster: broker and controller in one.
#[derive(Debug)]
pub struct Broker {
    id: usize,
    jvm: Jvm,
    port: u16,
    door: Option<Door>,
    controller_port: u16,
    folder: PathBuf,
    process: Option<Process>,
}

/// A running (or stopped) private cluster.
#[derive(Debug)]
pub struct Kafka {
    brokers: Vec<Broker>,
    // Outlives the brokers' processes, which are dropped first.
    _folder: TempDir,
}

impl Kafka {
    /// An empty cluster of `count` brokers, answering.
    pub async fn start(count: usize) -> Result<Kafka, Error> {
        Kafka::start_in(count, Jvm::Small).await
    }

    /// The same in a JVM of one's choice.
    pub async fn start_in(count: usize, jvm: Jvm) -> Result<Kafka, Error> {
        let mut kafka = Kafka::prepare(count, None).await?;
        kafka.brokers.iter_mut().for_each(|broker| broker.jvm = jvm);
        kafka.restart().await?;
        Ok(kafka)
    }

    /// An empty cluster of one broker that can be reached by a door of its own as well.
    pub async fn start_behind(door: Door) -> Result<Kafka, Error> {
        let mut kafka = Kafka::prepare(1, Some(door)).await?;
        kafka.restart().await?;
        Ok(kafka)
    }

    /// An empty cluster that does not run yet: its address is known before anybody answers there.
    async fn prepare(count: usize, door: Option<Door>) -> Result<Kafka, Error> {
        let folder = folder("kafka")?;
        let mut brokers = Vec::new();
        for id in 1..=count {
            let (port, controller_port) = (port::free(), port::free());
            brokers.push(Broker {
                id,
                jvm: Jvm::Small,
                port,
                door,
                controller_port,
                folder: folder.path().join(id.to_string()),
                process: None,
            });
        }
        let voters: Vec<String> = brokers.iter().map(|b| format!("{}@127.0.0.1:{}", b.id, b.controller_port)).collect();
        for broker in &brokers {
            broker.write_properties(&voters)?;
        }
        // A format takes a second of a JVM each: at the same time, and then wait for all.
        let mut formats = Vec::new();
        for broker in &brokers {
            formats.push(broker.format()?);
        }
        for mut format in formats {
            let status = format.wait(ANSWER_WITHIN).await?;
            if !status.success() {
                return Err(Error::new(format!("Kafka's format failed, {}: {}", describe(status), format.tail())));
            }
        }
        Ok(Kafka { brokers, _folder: folder })
    }

    /// `host:port,…` of all brokers.
    pub fn addresses(&self) -> String {
        let all: Vec<String> = self.brokers.iter().map(|broker| format!("127.0.0.1:{}", broker.port)).collect();
        all.join(",")
    }

    /// A broker by its place, from 0.
    pub fn broker(&mut self, index: usize) -> &mut Broker {
        &mut self.brokers[index]
    }

    /// The number of brokers.
    pub fn count(&self) -> usize {
        self.brokers.len()
    }

    /// The broker, from 0, that coordinates the transactions of a transactional id.
    pub async fn coordinator_of(&self, transactional_id: &str) -> Result<usize, Error> {
        const TOPIC: &str = "__transaction_state";
        // Java's hash of a string, without its sign.
        let hash = transactional_id
            .encode_utf16()
            .fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
        let hash = hash & i32::MAX;
        let addresses = self.addresses();
        let ask = move || {
            let consumer: BaseConsumer = ClientConfig::new().set("bootstrap.servers", addresses).create()?;
            let metadata = consumer.fetch_metadata(Some(TOPIC), Duration::from_secs(20))?;
            let partitions = metadata.topics().first().map(|topic| topic.partitions()).unwrap_or_default();
            let partition = partitions.iter().find(|p| p.id() == hash % partitions.len() as i32);
            Ok(partition.map(|partition| partition.leader()))
        };
        let answer = tokio::task::spawn_blocking(ask).await.expect("asking for metadata does not panic");
        let leader = answer.map_err(Error::during::<rdkafka::error::KafkaError>(format!("look at {TOPIC}")))?;
        let place = |leader: i32| self.brokers.iter().position(|broker| i32::try_from(broker.id) == Ok(leader));
        leader.and_then(place).ok_or_else(|| Error::new(format!("{TOPIC} has no leader for {transactional_id}")))
    }

    /// Starts every broker that does not run, with its old data, and waits until all of them answer.
    pub async fn restart(&mut self) -> Result<(), Error> {
        for broker in &mut self.brokers {
            broker.launch()?;
        }
        self.answers().await
    }

    /// Waits until every broker is a member of the cluster again.
    pub async fn answers(&mut self) -> Result<(), Error> {
        let (addresses, count) = (self.addresses(), self.brokers.len());
        let brokers = &mut self.brokers;
        until("every Kafka broker answers", ANSWER_WITHIN, async || {
            for broker in brokers.iter_mut() {
                if let Some(fault) = broker.fault() {
                    return Ok(Err(fault));
                }
            }
            let found = brokers_of(&addresses).await?;
            if found == count { Ok(Ok(())) } else { Err(format!("{found} of {count} are members")) }
        })
        .await?
    }

    /// An orderly shutdown of all brokers at the same time: one after the other, the last would look for a quorum in vain.
    pub async fn stop(&mut self) -> Result<(), Error> {
        for broker in &mut self.brokers {
            broker.process.iter_mut().for_each(|process| process.signal(Signal::SIGTERM));
        }
        for broker in &mut self.brokers {
            if let Some(mut process) = broker.process.take() {
                process.wait(Duration::from_secs(30)).await?;
            }
        }
        Ok(())
    }

    /// `kill -9` of all brokers.
    pub async fn kill9(&mut self) -> Result<(), Error> {
        for broker in &mut self.brokers {
            broker.kill9().await?;
        }
        Ok(())
    }

    /// Runs one of Kafka's own tools to its end and returns what it printed.
    pub async fn tool(class: &str, arguments: &[&str]) -> Result<String, Error> {
        let folder = folder("kafka-tool")?;
        let mut command = java("256m", folder.path())?;
        command.arg(class).args(arguments);
        let log = folder.path().join("output");
        let mut process = Process::spawn(class, command, &log, Signal::SIGKILL)?;
        let status = process.wait(ANSWER_WITHIN).await?;
        let printed = fs::read_to_string(&log).map_err(Error::during(format!("read what {class} printed")))?;
        if status.success() {
            return Ok(printed);
        }
        Err(Error::new(format!("{class} failed, {}: {printed}", describe(status))))
    }
}

impl Broker {
    /// Its process id, while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The file with everything that it printed.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Starts it if it does not run, without waiting for it to answer.
    pub fn launch(&mut self) -> Result<(), Error> {
        if self.process.is_none() {
            let mut command = match self.jvm {
                Jvm::Small => java("512m", &self.folder)?,
                Jvm::AsShipped => java_as_shipped("1g", &place::kafka()?, &self.folder),
            };
            command.arg("kafka.Kafka").arg(self.properties());
            self.process = Some(Process::spawn("Kafka", command, &self.log(), Signal::SIGKILL)?);
        }
        Ok(())
    }

    /// An orderly shutdown.
    pub async fn stop(&mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(mut process) => process.stop(Signal::SIGTERM, Duration::from_secs(30)).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// `kill -9`.
    pub async fn kill9(&mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(mut process) => process.kill9().await,
            None => Ok(()),
        }
    }

    /// Stops it where it stands (SIGSTOP).
    pub fn freeze(&mut self) {
        self.process.iter_mut().for_each(|process| process.signal(Signal::SIGSTOP));
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&mut self) {
        self.process.iter_mut().for_each(|process| process.signal(Signal::SIGCONT));
    }

    fn fault(&mut self) -> Option<Error> {
        let process = self.process.as_mut()?;
        let status = process.ended()?;
        Some(Error::new(format!("Kafka broker {} ended, {}: {}", self.id, describe(status), process.tail())))
    }

    fn properties(&self) -> PathBuf {
        self.folder.join("server.properties")
    }

    fn write_properties(&self, voters: &[String]) -> Result<(), Error> {
        let replication = voters.len().min(3).to_string();
        let in_sync = if voters.len() >= 3 { "2" } else { "1" };
        let mut listeners =
            format!("PLAINTEXT://127.0.0.1:{},CONTROLLER://127.0.0.1:{}", self.port, self.controller_port);
        let mut advertised = format!("PLAINTEXT://127.0.0.1:{}", self.port);
        if let Some(door) = self.door {
            listeners.push_str(&format!(",DOOR://127.0.0.1:{}", door.port));
            advertised.push_str(&format!(",DOOR://127.0.0.1:{}", door.advertised));
        }
        let properties = [
            ("process.roles", "broker,controller"),
            ("node.id", &self.id.to_string()),
            ("controller.quorum.voters", &voters.join(",")),
            ("controller.listener.names", "CONTROLLER"),
            ("listeners", &listeners),
            ("advertised.listeners", &advertised),
            ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,DOOR:PLAINTEXT"),
            ("inter.broker.listener.name", "PLAINTEXT"),
            ("log.dirs", &self.folder.join("data").display().to_string()),
            ("auto.create.topics.enable", "false"),
            ("offsets.topic.replication.factor", &replication),
            ("offsets.topic.num.partitions", "4"),
            ("transaction.state.log.replication.factor", &replication),
            ("transaction.state.log.min.isr", in_sync),
            ("transaction.state.log.num.partitions", "4"),
            ("share.coordinator.state.topic.replication.factor", &replication),
            ("share.coordinator.state.topic.min.isr", in_sync),
            ("share.coordinator.state.topic.num.partitions", "1"),
            ("group.initial.rebalance.delay.ms", "0"),
            // A broker killed and started at once is refused until its old registration has run out.
            ("broker.session.timeout.ms", "4000"),
            ("broker.heartbeat.interval.ms", "500"),
        ];
        let text: String = properties.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        fs::create_dir(&self.folder)
            .and_then(|()| fs::write(self.properties(), text))
            .map_err(Error::during(format!("write {}", self.properties().display())))
    }

    fn format(&self) -> Result<Process, Error> {
        // Any 16 bytes in this form do; the nodes of one cluster share them.
        const CLUSTER: &str = "dHJpYnV0YXJ5LXRlc3Rz";
        let mut command = java("128m", &self.folder)?;
        command.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c"]).arg(self.properties());
        Process::spawn("Kafka's format", command, &self.folder.join("format.log"), Signal::SIGKILL)
    }
}

/// A JVM with Kafka's class path: [`Jvm::Small`].
fn java(heap: &str, folder: &Path) -> Result<Command, Error> {
    let flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"];
    Ok(java_with(heap, &flags, &place::kafka()?, folder))
}

/// A JVM as Kafka's own scripts start one for the broker and for Connect; what it dumps goes to `folder`.
pub fn java_as_shipped(heap: &str, class_path: &str, folder: &Path) -> Command {
    const FLAGS: [&str; 6] = [
        "-Xms256m",
        "-server",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExplicitGCInvokesConcurrent",
    ];
    java_with(heap, &FLAGS, class_path, folder)
}

fn java_with(heap: &str, flags: &[&str], class_path: &str, folder: &Path) -> Command {
    let mut command = Command::new("java");
    command
        .arg(format!("-Xmx{heap}"))
        .args(flags)
        .args(["-Djava.awt.headless=true", "-cp", class_path])
        // Where the JVM would leave a dump.
        .current_dir(folder);
    command
}

/// How many brokers the cluster says that it has.
async fn brokers_of(addresses: &str) -> Result<usize, String> {
    let addresses = addresses.to_owned();
    let ask = move || {
        let consumer: BaseConsumer = ClientConfig::new().set("bootstrap.servers", addresses).create()?;
        Ok(consumer.fetch_metadata(None, Duration::from_secs(2))?.brokers().len())
    };
    let answer = tokio::task::spawn_blocking(ask).await.expect("asking for metadata does not panic");
    answer.map_err(|cause: rdkafka::error::KafkaError| cause.to_string())
}
