//! A standby of a private server, and its promotion.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio_postgres::Client;

use super::{ANSWER_WITHIN, Postgres, Role, become_server_user, give_to_server};
use crate::process::{Process, describe};
use crate::servers::folder;
use crate::until::until;
use crate::{Error, port};

impl Postgres {
    /// A streaming standby of this server, answering. `name` is its physical slot and how the primary knows it.
    ///
    /// What logical slots need to be taken along is there, but for `sync_replication_slots`, which not every version has.
    pub async fn standby(&self, name: &str, settings: &[(&str, &str)]) -> Result<Postgres, Error> {
        let primary = self.address().connect(Role::Superuser, "postgres").await?;
        let slot = "SELECT pg_create_physical_replication_slot($1, true)";
        primary.execute(slot, &[&name]).await.map_err(Error::during("make the standby's slot"))?;
        let folder = folder("standby")?;
        let data = folder.path().join("data");
        fs::create_dir(&data).map_err(Error::during(format!("make {}", data.display())))?;
        // pg_basebackup leaves a folder that is there as it is, and the server insists.
        let private = fs::set_permissions(&data, fs::Permissions::from_mode(0o700));
        private.map_err(Error::during("close the data folder to others"))?;
        give_to_server(&data)?;
        self.copy_to(&data, name, &folder.path().join("basebackup.log")).await?;
        let signal = data.join("standby.signal");
        fs::write(&signal, "").map_err(Error::during("mark the copy as a standby"))?;
        give_to_server(&signal)?;
        let mut standby = Postgres {
            address: super::Address { port: port::free() },
            programs: self.programs.clone(),
            folder,
            settings: self.settings.clone(),
            process: None,
        };
        let (port, role) = (self.address.port, Role::Superuser);
        let (user, password) = (role.name(), role.password());
        let to_primary = format!(
            "host=127.0.0.1 port={port} user={user} password={password} dbname=postgres application_name={name}"
        );
        standby.set("primary_conninfo", &to_primary);
        standby.set("primary_slot_name", name);
        standby.set("hot_standby_feedback", "on");
        for (setting, value) in settings {
            standby.set(setting, value);
        }
        standby.restart().await?;
        self.until_streaming(name).await?;
        Ok(standby)
    }

    /// Waits until the standby of that name streams.
    pub async fn until_streaming(&self, name: &str) -> Result<(), Error> {
        let primary = self.address().connect(Role::Superuser, "postgres").await?;
        let query = "SELECT state FROM pg_stat_replication WHERE application_name = $1";
        until(&format!("the standby {name} streams"), ANSWER_WITHIN, async || {
            let row = primary.query_opt(query, &[&name]).await.map_err(|cause| cause.to_string())?;
            let state: Option<String> = row.and_then(|row| row.get(0));
            if state.as_deref() == Some("streaming") { Ok(()) } else { Err(format!("{state:?}")) }
        })
        .await
    }

    /// Makes a primary of this standby, and waits until it is one.
    pub async fn promote(&mut self) -> Result<(), Error> {
        let client = self.address().connect(Role::Superuser, "postgres").await?;
        let row = client.query_one("SELECT pg_promote(true, 120)", &[]).await;
        let done: bool = row.map_err(Error::during("promote the standby"))?.get(0);
        if done { Ok(()) } else { Err(Error::new("the standby was not promoted within 120 s")) }
    }

    /// Waits until this standby has taken a logical slot along, ready for a promotion. The slot must be on its way: one that
    /// nobody moves is never ready.
    pub async fn until_synced(&self, slot: &str) -> Result<(), Error> {
        let client = self.address().connect(Role::Superuser, "postgres").await?;
        let query = "SELECT synced AND NOT temporary AND invalidation_reason IS NULL, confirmed_flush_lsn::text
                     FROM pg_replication_slots WHERE slot_name = $1";
        until(&format!("the slot {slot} is ready at the standby"), ANSWER_WITHIN, async || {
            let row = client.query_opt(query, &[&slot]).await.map_err(|cause| cause.to_string())?;
            match row {
                Some(row) if row.get(0) => Ok(()),
                Some(row) => Err(format!("not ready, at {:?}", row.get::<_, Option<String>>(1))),
                None => Err("not there".to_owned()),
            }
        })
        .await
    }

    /// The same for a slot that nobody reads: it is moved on meanwhile, so whoever made it must not need what is written yet.
    pub async fn until_taken_along(&self, primary: &Client, slot: &str) -> Result<(), Error> {
        let go_on = async {
            let failed = |cause| Error::during(format!("move the slot {slot} on"))(cause);
            let advance = "SELECT pg_replication_slot_advance($1, pg_current_wal_flush_lsn())";
            let mut ticks = tokio::time::interval(Duration::from_millis(500));
            loop {
                ticks.tick().await;
                let written = primary.batch_execute("SELECT txid_current(); SELECT pg_log_standby_snapshot()").await;
                if let Err(cause) = written.and(primary.execute(advance, &[&slot]).await) {
                    return failed(cause);
                }
            }
        };
        tokio::select! {
            synced = self.until_synced(slot) => synced,
            fault = go_on => Err(fault),
        }
    }

    async fn copy_to(&self, data: &Path, slot: &str, log: &Path) -> Result<(), Error> {
        let mut command = Command::new(self.programs.join("pg_basebackup"));
        command
            .args(["--host=127.0.0.1", "--no-password", "--checkpoint=fast", "--wal-method=stream", "--no-sync"])
            .arg(format!("--port={}", self.address.port))
            .arg(format!("--username={}", Role::Superuser.name()))
            .arg(format!("--slot={slot}"))
            .arg("--pgdata")
            .arg(data)
            .env("PGPASSWORD", Role::Superuser.password());
        become_server_user(&mut command)?;
        let mut process = Process::spawn("pg_basebackup", command, log, Signal::SIGKILL)?;
        let status = process.wait(ANSWER_WITHIN).await?;
        if status.success() {
            return Ok(());
        }
        Err(Error::new(format!("pg_basebackup failed, {}: {}", describe(status), process.tail())))
    }
}
