//! Connections to the target: few, pinned, reused, thrown away at the first doubt.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postgres::config::{Found, Pem, SslMode, TargetSession};
use postgres::settings;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Row};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::Group;
use crate::error::Error;

/// Settings of our sessions beside the pinned ones.
///
/// Our statements find rows by key and nothing else, and run for weeks: a plan made once while a table was empty must not
/// scan it when it is full, and planning anew for every batch costs more than it finds.
const SETTINGS: &[(&str, &str)] = &[
    ("lock_timeout", "30s"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_seqscan", "off"),
    ("jit", "off"),
    // The driver would log what a server says to everyone when it goes down; the error that follows tells it once.
    ("client_min_messages", "error"),
];

/// More statements than one group's tables give rise to.
const STATEMENTS_MAX: usize = 1_000;

/// The target's connections for one group.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Where it may be, in the order in which it is looked for.
    hosts: Vec<Host>,
    /// Which of these servers will do.
    target_session: TargetSession,
    connect_timeout: Duration,
    /// How messages call the target.
    pub(crate) display: String,
    permits: Semaphore,
    idle: Mutex<Vec<PgConnection>>,
    /// Whether the server let us take the replica role.
    replica: AtomicBool,
    told: AtomicBool,
}

/// One host of the target.
#[derive(Debug)]
struct Host {
    /// How messages call it.
    display: String,
    options: PgConnectOptions,
}

/// A connection in use. Dropped without [`Lease::keep`] it is closed, whatever its state.
#[derive(Debug)]
pub(crate) struct Lease<'p> {
    pool: &'p Pool,
    connection: PgConnection,
    _permit: SemaphorePermit<'p>,
}

impl Lease<'_> {
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Gives it back, outside any transaction, for the next one.
    pub(crate) fn keep(self) {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.connection);
    }
}

impl Pool {
    pub(crate) fn new(config: &postgres::Config, group: &Group) -> Pool {
        Pool {
            hosts: config.each().map(|one| Host { display: one.display(), options: options(&one, group) }).collect(),
            target_session: config.target_session,
            connect_timeout: config.connect_timeout,
            display: config.display(),
            permits: Semaphore::new(group.connections),
            idle: Mutex::default(),
            replica: AtomicBool::new(false),
            told: AtomicBool::new(false),
        }
    }

    /// A connection that is free, or a new one; waits while all are in use.
    pub(crate) async fn get(&self) -> Result<Lease<'_>, Error> {
        let permit = self.permits.acquire().await.expect("the semaphore is never closed");
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(Lease { pool: self, connection, _permit: permit })
    }

    /// Whether triggers and foreign keys of the target keep still for what we apply. Known after the first connection.
    pub(crate) fn is_replica(&self) -> bool {
        self.replica.load(Ordering::Relaxed)
    }

    /// At the first host that will do. All are tried: during a failover one says nothing of the next.
    async fn connect(&self) -> Result<PgConnection, Error> {
        let mut failures = Vec::new();
        for host in &self.hosts {
            match self.connect_at(host).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failures.push(error),
            }
        }
        Err(Error::of_hosts(failures))
    }

    async fn connect_at(&self, host: &Host) -> Result<PgConnection, Error> {
        const GREETING: &str = "SELECT current_setting('server_version'), pg_is_in_recovery(), \
                                current_setting('default_transaction_read_only') = 'on'";
        let target = || host.display.clone();
        let connecting = async {
            let failed = |cause| Error::Connect { target: target(), cause };
            let mut connection = PgConnection::connect_with(&host.options).await.map_err(failed)?;
            let row = sqlx::query(GREETING).fetch_one(&mut connection).await.map_err(failed)?;
            let found = Found { is_standby: row.get(1), is_read_only: row.get(2) };
            if let Some(found) = self.target_session.objection(found) {
                return Err(Error::WrongSession { target: target(), found, wanted: self.target_session.as_str() });
            }
            let newer = settings::statements(settings::major(row.get(0)).unwrap_or_default());
            if !newer.is_empty() {
                connection.execute(sqlx::raw_sql(AssertSqlSafe(newer))).await.map_err(failed)?;
            }
            self.take_replica_role(&mut connection).await.map_err(failed)?;
            Ok(connection)
        };
        let seconds = self.connect_timeout.as_secs();
        let silent = |_| Error::Silent { target: target(), operation: "let us in", seconds };
        tokio::time::timeout(self.connect_timeout, connecting).await.map_err(silent)?
    }

    async fn take_replica_role(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        match connection.execute("SET session_replication_role = replica").await {
            Ok(_) => {
                self.replica.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42501") => {
                self.replica.store(false, Ordering::Relaxed);
                if !self.told.swap(true, Ordering::Relaxed) {
                    tracing::info!(
                        target = %self.display,
                        "not permitted to set session_replication_role: triggers and foreign keys of the target act on what is applied"
                    );
                }
                Ok(())
            }
            Err(other) => Err(other),
        }
    }
}

fn options(config: &postgres::Config, group: &Group) -> PgConnectOptions {
    let purpose = format!("sink {}", group.name);
    // Whoever is taken for dead must not hold its rows any longer than that: the next owner waits for them.
    let idle = ("idle_in_transaction_session_timeout", format!("{}ms", group.session_timeout.as_millis()));
    let mode = match config.tls.mode {
        SslMode::Disable => PgSslMode::Disable,
        SslMode::Require => PgSslMode::Require,
        SslMode::VerifyCa => PgSslMode::VerifyCa,
        SslMode::VerifyFull => PgSslMode::VerifyFull,
    };
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(&config.host().name)
        .port(config.host().port)
        .username(&config.user)
        .database(&config.database)
        .ssl_mode(mode)
        .statement_cache_capacity(STATEMENTS_MAX)
        .application_name(&settings::application_name(&purpose))
        // The driver sends a weaker value of its own otherwise, and that would win.
        .extra_float_digits(3)
        .options(settings::PINNED.iter().chain(SETTINGS).copied())
        .options([idle])
        .disable_statement_logging();
    if !config.password.is_empty() {
        options = options.password(config.password.expose());
    }
    options = match &config.tls.root_certificate {
        Some(Pem::File(file)) => options.ssl_root_cert(file),
        Some(Pem::Text { text, .. }) => options.ssl_root_cert_from_pem(text.expose().as_bytes().to_vec()),
        None => options,
    };
    options = match &config.tls.certificate {
        Some(Pem::File(file)) => options.ssl_client_cert(file),
        Some(Pem::Text { text, .. }) => options.ssl_client_cert_from_pem(text.expose()),
        None => options,
    };
    match &config.tls.key {
        Some(Pem::File(file)) => options.ssl_client_key(file),
        Some(Pem::Text { text, .. }) => options.ssl_client_key_from_pem(text.expose()),
        None => options,
    }
}
