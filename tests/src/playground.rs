//! A stack to play with: servers that stay until they are told to go, a table with rows in it, and every line to paste.
//!
//! `up` starts a second process that holds the servers, so that the terminal is free again. What it writes lies in `.cache/stack`.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal as listen};

use crate::servers::{PostgresAddress, RedisAddress, Role};
use crate::stack::{Addresses, Stack};
use crate::until::until;
use crate::{Error, place, process};

const SOURCE: &str = "shop";
const TARGET: &str = "shop_new";

/// What the process that holds the servers tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Held {
    pid: i32,
    postgres_port: u16,
    kafka: String,
    redis_port: u16,
    logs: Vec<PathBuf>,
}

/// Starts the servers and prints how to reach them.
pub async fn up() -> Result<(), Error> {
    if let Some(held) = running()? {
        println!("The stack is up already.\n");
        print!("{}", held.description());
        return Ok(());
    }
    fs::create_dir_all(folder()).map_err(Error::during(format!("make {}", folder().display())))?;
    let program = std::env::current_exe().map_err(Error::during("find this program"))?;
    let log = folder().join("serve.log");
    let output = File::create(&log).map_err(Error::during(format!("write {}", log.display())))?;
    let errors = output.try_clone().map_err(Error::during(format!("write {}", log.display())))?;
    println!("Starting PostgreSQL, Kafka and Redis ...");
    let mut holder = Command::new(program)
        .arg("serve")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        // Ctrl-C in this terminal is not meant for it.
        .process_group(0)
        .spawn()
        .map_err(Error::during("start the process that holds the servers"))?;
    let held = until("the stack is up", Duration::from_secs(120), async || {
        let ended = holder.try_wait().map_err(|cause| cause.to_string())?;
        if let Some(status) = ended {
            let tail = process::tail(&log, 20);
            return Ok(Err(Error::new(format!("the stack did not start, {}: {tail}", process::describe(status)))));
        }
        match running() {
            Ok(Some(held)) => Ok(Ok(held)),
            Ok(None) => Err("it starts".to_owned()),
            Err(fault) => Ok(Err(fault)),
        }
    })
    .await??;
    print!("{}", held.description());
    Ok(())
}

/// Stops the servers.
pub async fn down() -> Result<(), Error> {
    let Some(held) = running()? else {
        println!("No stack is up.");
        return Ok(());
    };
    let holder = Pid::from_raw(held.pid);
    // Should it have ended since, that is what we want.
    let _ = signal::kill(holder, Signal::SIGTERM);
    until("the stack is down", Duration::from_secs(60), async || {
        if signal::kill(holder, None).is_err() { Ok(()) } else { Err(format!("process {holder} still runs")) }
    })
    .await?;
    println!("The stack is down.");
    Ok(())
}

/// Prints how to reach the servers.
pub async fn status() -> Result<(), Error> {
    match running()? {
        Some(held) => print!("{}", held.description()),
        None => println!("No stack is up: `./dev up` starts one."),
    }
    Ok(())
}

/// Holds the servers until SIGTERM or SIGINT. What `up` runs in the background.
pub async fn serve() -> Result<(), Error> {
    let mut signals = Vec::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        signals.push(listen(kind).map_err(Error::during("listen for signals"))?);
    }
    let [terminate, interrupt, hangup] = &mut signals[..] else { unreachable!("three were pushed") };
    let work = async {
        let stack = Stack::start().await?;
        prepare(&stack.addresses()).await?;
        let held = Held::of(&stack);
        write_private(&configuration_file(), &held.configuration())?;
        let told = toml::to_string(&held).map_err(Error::during("write down where the servers are"))?;
        write_private(&held_file(), &told)?;
        Ok::<Stack, Error>(stack)
    };
    let stack = tokio::select! {
        stack = work => stack?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    loop {
        // The terminal that started us may close: we stay.
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => {}
        }
    }
    fs::remove_file(held_file()).map_err(Error::during(format!("remove {}", held_file().display())))?;
    stack.stop().await
}

/// Two databases, and a table in both of them that the configuration moves.
async fn prepare(addresses: &Addresses) -> Result<(), Error> {
    let server = addresses.postgres.connect(Role::Superuser, "postgres").await?;
    let sql = |operation| move |cause: tokio_postgres::Error| Error::during(operation)(cause);
    for (database, owner) in [(SOURCE, Role::Source), (TARGET, Role::Target)] {
        let create = format!("CREATE DATABASE {database} OWNER {}", owner.name());
        server.batch_execute(&create).await.map_err(sql("create a database"))?;
        let client = addresses.postgres.connect(owner, database).await?;
        let table =
            "CREATE TABLE public.users (id bigint PRIMARY KEY, name text NOT NULL, since timestamptz DEFAULT now())";
        let schema = addresses.postgres.connect(Role::Superuser, database).await?;
        let grant = format!("GRANT ALL ON SCHEMA public TO {}", owner.name());
        schema.batch_execute(&grant).await.map_err(sql("grant the schema"))?;
        client.batch_execute(table).await.map_err(sql("create the table"))?;
        if owner == Role::Source {
            let rows = "INSERT INTO public.users (id, name) SELECT i, 'user ' || i FROM generate_series(1, 1000) i";
            client.batch_execute(rows).await.map_err(sql("fill the table"))?;
        }
    }
    Ok(())
}

impl Held {
    fn of(stack: &Stack) -> Held {
        let addresses = stack.addresses();
        Held {
            pid: std::process::id() as i32,
            postgres_port: addresses.postgres.port,
            kafka: addresses.kafka,
            redis_port: addresses.redis.port,
            logs: vec![stack.postgres.log(), stack.redis.log()],
        }
    }

    /// A configuration that moves the table, topics and slot included.
    fn configuration(&self) -> String {
        let postgres = PostgresAddress { port: self.postgres_port };
        let (kafka, redis) = (&self.kafka, RedisAddress { port: self.redis_port }.url(0));
        let (source, target) = (postgres.url(Role::Source, SOURCE), postgres.url(Role::Target, TARGET));
        let (source_password, target_password) = (Role::Source.password(), Role::Target.password());
        format!(
            r#"# Written by `./dev up` for the stack that it has started.
prefix = "shop"

[http]
listen = "127.0.0.1:{http}"

[kafka]
brokers = "kafka://{kafka}"

[source]
url = "{source}"
password = "{source_password}"
tables = ["public.users"]
create = true

[source.topics]
create = true
partitions = 4
replication = 1
min_insync_replicas = 1

[target]
url = "{target}"
password = "{target_password}"

[redis]
url = "{redis}"

[groups.rdb]
to = "postgres"

[groups.redis]
to = "redis"
mode = "both"
"#,
            http = crate::port::free(),
        )
    }

    fn description(&self) -> String {
        let postgres = PostgresAddress { port: self.postgres_port };
        let psql = place::psql();
        let binary = place::tributary().unwrap_or_else(|_| PathBuf::from("tributary"));
        let (psql, binary, configuration) = (psql.display(), binary.display(), configuration_file());
        let (source, target) =
            (postgres.url_with_password(Role::Superuser, SOURCE), postgres.url_with_password(Role::Superuser, TARGET));
        let (kafka, redis) = (&self.kafka, self.redis_port);
        let configuration = configuration.display();
        let logs: String = self.logs.iter().map(|log| format!("    {}\n", log.display())).collect();
        format!(
            "PostgreSQL  127.0.0.1:{}   source database {SOURCE}, target database {TARGET}
Kafka       {kafka}
Redis       127.0.0.1:{redis}
tributary   {configuration}   moves the table public.users

Move it, and follow:
    {binary} run --config {configuration}
    {binary} status --config {configuration}
    {binary} verify --config {configuration}
Look into the source, and into the target:
    {psql} '{source}'
    {psql} '{target}'
Look into the topic:
    kcat -b {kafka} -C -t shop.public.users -e -f '%k %s %h\\n'
Watch what is announced:
    redis-cli -p {redis} psubscribe '*'
Logs:
{logs}
`./dev down` stops all of it.
",
            self.postgres_port
        )
    }
}

/// The stack that is up. One whose holder is gone is forgotten.
fn running() -> Result<Option<Held>, Error> {
    let Ok(text) = fs::read_to_string(held_file()) else { return Ok(None) };
    let held: Held = toml::from_str(&text).map_err(Error::during(format!("read {}", held_file().display())))?;
    let command = fs::read_to_string(format!("/proc/{}/cmdline", held.pid)).unwrap_or_default();
    if command.contains("serve") {
        return Ok(Some(held));
    }
    fs::remove_file(held_file()).map_err(Error::during(format!("remove {}", held_file().display())))?;
    Ok(None)
}

/// It holds passwords, so only its owner may read it; and a reader never sees the half of it.
fn write_private(file: &Path, text: &str) -> Result<(), Error> {
    use std::io::Write;
    let fresh = file.with_extension("fresh");
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut open| open.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&fresh, file))
        .map_err(Error::during(format!("write {}", file.display())))
}

fn folder() -> PathBuf {
    place::repository().join(".cache/stack")
}

fn held_file() -> PathBuf {
    folder().join("held.toml")
}

fn configuration_file() -> PathBuf {
    folder().join("tributary.toml")
}
