//! A private PostgreSQL: its own `initdb`, its own port, logical replication on, passwords demanded.

mod standby;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::{Pid, Uid, User};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use super::{ANSWER_WITHIN, Durability, folder};
use crate::process::{Process, describe};
use crate::until::until;
use crate::{Error, place, port};

/// Who connects. Each has the rights that its part of the product needs and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The operator's own superuser, for making things ready and for looking.
    Superuser,
    /// Reads the source: REPLICATION, and SELECT where it is granted.
    Source,
    /// Writes the target.
    Target,
    /// The application that owns and writes the source's tables.
    Application,
}

impl Role {
    /// All that stand on every server.
    pub const ALL: [Role; 4] = [Role::Superuser, Role::Source, Role::Target, Role::Application];

    /// Its name in the database.
    pub fn name(self) -> &'static str {
        match self {
            Role::Superuser => "postgres",
            Role::Source => "tributary_source",
            Role::Target => "tributary_target",
            Role::Application => "application",
        }
    }

    /// Its password. Known to everybody: the server listens on the loopback alone and lives for minutes.
    pub fn password(self) -> &'static str {
        match self {
            Role::Superuser => "superuser-secret",
            Role::Source => "source-secret",
            Role::Target => "target-secret",
            Role::Application => "application-secret",
        }
    }
}

/// The rights that hold in the whole cluster; those on tables are granted with the tables.
const ROLES: &str = "
    CREATE ROLE tributary_source LOGIN REPLICATION PASSWORD 'source-secret';
    CREATE ROLE tributary_target LOGIN PASSWORD 'target-secret';
    CREATE ROLE application LOGIN PASSWORD 'application-secret';
    DO $$ BEGIN
        IF current_setting('server_version_num')::int >= 150000 THEN
            EXECUTE 'GRANT SET ON PARAMETER session_replication_role TO tributary_target';
        END IF;
    END $$;
";

/// Where a PostgreSQL answers, whoever has started it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its port on 127.0.0.1.
    pub port: u16,
}

impl Address {
    /// `postgresql://role@127.0.0.1:port/database`, as it stands in a configuration: without the password.
    pub fn url(&self, role: Role, database: &str) -> String {
        format!("postgresql://{}@127.0.0.1:{}/{database}?sslmode=disable", role.name(), self.port)
    }

    /// The same with the password, for clients that are not ours.
    pub fn url_with_password(&self, role: Role, database: &str) -> String {
        let (name, password) = (role.name(), role.password());
        format!("postgresql://{name}:{password}@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    /// A connection with the settings under which values are compared as text.
    pub async fn connect(&self, role: Role, database: &str) -> Result<Client, Error> {
        const PINNED: &str = "-c datestyle=ISO,MDY -c intervalstyle=iso_8601 -c timezone=UTC -c extra_float_digits=3 \
                              -c bytea_output=hex -c lc_monetary=C -c xmloption=content -c row_security=off";
        let (client, connection) = tokio_postgres::Config::new()
            .host("127.0.0.1")
            .port(self.port)
            .user(role.name())
            .password(role.password())
            .dbname(database)
            .application_name("harness")
            .options(PINNED)
            .connect_timeout(Duration::from_secs(10))
            .connect(NoTls)
            .await
            .map_err(Error::during(format!("connect to {} as {}", self.url(role, database), role.name())))?;
        // A failure shows in whatever the client is asked next.
        tokio::spawn(connection);
        Ok(client)
    }
}

/// A running (or stopped) private server.
#[derive(Debug)]
pub struct Postgres {
    address: Address,
    /// The folder with its programs: one major's.
    programs: PathBuf,
    folder: TempDir,
    settings: Vec<(String, String)>,
    process: Option<Process>,
}

impl Postgres {
    /// A fresh cluster, answering, with the roles made.
    pub async fn start(durability: Durability) -> Result<Postgres, Error> {
        Postgres::start_with(durability, &[]).await
    }

    /// A fresh cluster with settings of its own over the usual ones.
    pub async fn start_with(durability: Durability, settings: &[(&str, &str)]) -> Result<Postgres, Error> {
        Postgres::start_major(place::postgres_major()?, durability, settings).await
    }

    /// A fresh cluster of this major, whichever one is under test.
    pub async fn start_major(major: u32, durability: Durability, settings: &[(&str, &str)]) -> Result<Postgres, Error> {
        let programs = place::postgres_of(major)?;
        let folder = folder("postgres")?;
        initdb(&programs, &folder).await?;
        let mut server = Postgres {
            address: Address { port: port::free() },
            programs,
            folder,
            settings: usual_settings(durability),
            process: None,
        };
        for (name, value) in settings {
            server.set(name, value);
        }
        server.restart().await?;
        let client = server.address.connect(Role::Superuser, "postgres").await?;
        client.batch_execute(ROLES).await.map_err(Error::during("create the roles"))?;
        Ok(server)
    }

    /// Where it answers.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The folder with its programs, and those of its major beside it.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// The postmaster's process id, while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// The file with the server's log.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Writes a file into its data folder, for itself alone, such as a certificate or `pg_hba.conf`.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.folder.path().join("data").join(name);
        fs::write(&path, text).map_err(Error::during(format!("write {}", path.display())))?;
        let private = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
        private.map_err(Error::during(format!("close {} to others", path.display())))?;
        give_to_server(&path)
    }

    /// Changes a server setting; it holds from the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.retain(|(known, _)| known != name);
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Starts it again with the same data on the same port, and waits until it answers. One that runs is stopped first.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.stop().await?;
        let data = self.folder.path().join("data");
        let mut command = Command::new(self.programs.join("postgres"));
        command.arg("-D").arg(&data).arg("-p").arg(self.address.port.to_string());
        for (name, value) in &self.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        become_server_user(&mut command)?;
        let mut process = Process::spawn("PostgreSQL", command, &self.log(), Signal::SIGQUIT)?;
        until("PostgreSQL answers", ANSWER_WITHIN, async || {
            if let Some(status) = process.ended() {
                return Ok(Err(Error::new(format!("PostgreSQL ended, {}: {}", describe(status), process.tail()))));
            }
            let answer = self.address.connect(Role::Superuser, "postgres").await;
            answer.map(|_| Ok(())).map_err(|cause| format!("{cause:?}"))
        })
        .await??;
        self.process = Some(process);
        Ok(())
    }

    /// An orderly, fast shutdown.
    pub async fn stop(&mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(mut process) => process.stop(Signal::SIGINT, ANSWER_WITHIN).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// `kill -9` of the server and all its backends, as when the machine goes.
    pub async fn kill9(&mut self) -> Result<(), Error> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let backends = children_of(process.id());
        process.kill9().await?;
        for backend in &backends {
            // Many have ended by themselves: they notice that the postmaster is gone.
            let _ = signal::kill(*backend, Signal::SIGKILL);
        }
        until("PostgreSQL's backends are gone", Duration::from_secs(10), async || {
            let left = backends.iter().filter(|backend| signal::kill(**backend, None).is_ok()).count();
            if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
        })
        .await
    }

    /// Keeps a copy of everything that the server has on disk. It must not run.
    pub fn save(&self) -> Result<(), Error> {
        self.copy("data", "saved")
    }

    /// Puts back what was last saved, in the place of what there is. It must not run.
    pub fn restore(&self) -> Result<(), Error> {
        let data = self.folder.path().join("data");
        fs::remove_dir_all(&data).map_err(Error::during(format!("remove {}", data.display())))?;
        self.copy("saved", "data")
    }

    fn copy(&self, from: &str, to: &str) -> Result<(), Error> {
        if self.process.is_some() {
            return Err(Error::new("a server's data is copied only while it does not run"));
        }
        // Owners and modes as they are, which the standard library does not copy.
        let (from, to) = (self.folder.path().join(from), self.folder.path().join(to));
        let copied = Command::new("cp").arg("-a").arg(&from).arg(&to).status().map_err(Error::during("run cp"))?;
        if copied.success() { Ok(()) } else { Err(Error::new(format!("cp -a {} failed", from.display()))) }
    }

    /// Stops the server and its backends where they stand (SIGSTOP).
    pub fn freeze(&mut self) {
        self.signal_all(Signal::SIGSTOP);
    }

    /// Lets them go on (SIGCONT).
    pub fn thaw(&mut self) {
        self.signal_all(Signal::SIGCONT);
    }

    fn signal_all(&mut self, signal: Signal) {
        let Some(process) = &mut self.process else { return };
        process.signal(signal);
        for backend in children_of(process.id()) {
            // Backends are groups of their own, and may end meanwhile.
            let _ = signal::kill(backend, signal);
        }
    }
}

async fn initdb(programs: &Path, folder: &TempDir) -> Result<(), Error> {
    let (data, password) = (folder.path().join("data"), folder.path().join("password"));
    fs::create_dir(&data).map_err(Error::during(format!("make {}", data.display())))?;
    fs::write(&password, Role::Superuser.password()).map_err(Error::during("write the password file"))?;
    give_to_server(&data)?;
    let mut command = Command::new(programs.join("initdb"));
    command
        .args(["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"])
        .arg(format!("--pwfile={}", password.display()))
        .arg(&data);
    become_server_user(&mut command)?;
    let mut process = Process::spawn("initdb", command, &folder.path().join("initdb.log"), Signal::SIGKILL)?;
    let status = process.wait(ANSWER_WITHIN).await?;
    if status.success() {
        return Ok(());
    }
    Err(Error::new(format!("initdb failed, {}: {}", describe(status), process.tail())))
}

fn usual_settings(durability: Durability) -> Vec<(String, String)> {
    let safe = if durability == Durability::Full { "on" } else { "off" };
    [
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", ""),
        ("wal_level", "logical"),
        ("max_wal_senders", "100"),
        ("max_replication_slots", "100"),
        ("max_connections", "400"),
        ("max_prepared_transactions", "20"),
        ("shared_buffers", "128MB"),
        ("max_wal_size", "4GB"),
        ("fsync", safe),
        ("full_page_writes", safe),
        ("log_line_prefix", "%m [%p] %a %u@%d "),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// PostgreSQL refuses to run as root: there it runs as the user that its package has made.
fn server_user() -> Result<Option<User>, Error> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    User::from_name("postgres")
        .map_err(Error::during("look up the user postgres"))?
        .map(Some)
        .ok_or_else(|| Error::new("PostgreSQL does not run as root and there is no user postgres: make one"))
}

/// Hands a file or folder over to the user that the server runs as.
fn give_to_server(path: &Path) -> Result<(), Error> {
    let Some(user) = server_user()? else { return Ok(()) };
    let owner = (Some(user.uid.as_raw()), Some(user.gid.as_raw()));
    chown(path, owner.0, owner.1).map_err(Error::during(format!("hand over {}", path.display())))
}

fn become_server_user(command: &mut Command) -> Result<(), Error> {
    if let Some(user) = server_user()? {
        // Directly, without `runuser` in between: signals must reach the server itself.
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).current_dir("/");
    }
    Ok(())
}

fn children_of(parent: u32) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|process| {
            let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            // pid (name) state ppid …; the name may hold anything, so from the last parenthesis on.
            let parent_field = status.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
            parent_field.and_then(|field| field.parse().ok()) == Some(parent)
        })
        .map(Pid::from_raw)
        .collect()
}
