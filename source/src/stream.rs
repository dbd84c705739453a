//! The walsender's side of a session: one thread that reads frames, and says how far we are even while Kafka blocks.
//!
//!     server ──frames──▶ this thread ──Input::Frames──▶ the publisher's loop
//!        ◀──status── confirmed LSN (an atomic that the loop raises)
//!
//! Decides nothing. It reads ahead up to a number of bytes and then leaves the rest to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use postgres::replication::{Switch, System};
use postgres::{Error, Frame, Replication};
use schemas::Lsn;
use service::failpoint;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::session::{Input, Watch};

/// How often the server hears from us at least; it gives up after `wal_sender_timeout`, 60 s by default.
const STATUS_EVERY: Duration = Duration::from_secs(5);
/// How often a risen LSN is told.
const CONFIRM_EVERY: Duration = Duration::from_millis(500);
/// How often a slot that is in use is asked for again.
const SLOT_RETRY: Duration = Duration::from_millis(500);
/// Frames are handed over in groups of about this many bytes: one wake-up serves many.
const GROUP_BYTES: usize = 256 * 1024;

/// What the thread and the loop share.
#[derive(Debug, Default)]
pub struct Shared {
    /// What the loop allows to be confirmed; 0 for nothing yet.
    confirmed: AtomicU64,
    /// Bytes handed over and not released.
    waiting: AtomicUsize,
    released: Notify,
    /// The thread hands over nothing more.
    still: CancellationToken,
    /// The loop allows nothing more.
    settled: CancellationToken,
}

impl Shared {
    /// The loop has everything before `lsn` in a committed state record.
    pub fn confirm(&self, lsn: Lsn) {
        self.confirmed.fetch_max(lsn.0, Ordering::Relaxed);
    }

    /// Waits until the thread hands over nothing more.
    pub async fn still(&self) {
        self.still.cancelled().await;
    }

    /// When this is dropped, the loop allows nothing more to be confirmed: what it has allowed is told, and the thread ends.
    #[must_use]
    pub fn settling(&self) -> DropGuard {
        self.settled.clone().drop_guard()
    }

    /// The loop is done with this many bytes.
    pub fn release(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Ordering::AcqRel);
        self.released.notify_one();
    }
}

/// What the server is, and the way on.
#[derive(Debug)]
pub struct Identified {
    /// The server.
    pub system: System,
    /// The switches that led to its timeline.
    pub switches: Vec<Switch>,
    /// Say so, and the slot is taken.
    pub go: oneshot::Sender<Go>,
    /// Answered when the slot is ours.
    pub started: oneshot::Receiver<Result<(), Error>>,
}

/// The slot is to be taken.
#[derive(Clone, Copy, Debug)]
pub struct Go {
    /// Whether it must first be made one that standbys take along.
    pub make_failover: bool,
}

/// What the thread needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server.
    pub postgres: postgres::Config,
    /// The slot.
    pub slot: String,
    /// The publications.
    pub publications: Vec<String>,
    /// Nothing that was committed before this is wanted; the slot may stand behind it.
    pub since: Lsn,
    /// How many bytes may wait to be published.
    pub buffer_bytes_max: usize,
}

/// What the thread tells whoever has started it.
#[derive(Debug)]
pub struct Started {
    /// What the server is, once it has answered.
    pub identified: oneshot::Receiver<Result<Identified, Error>>,
    /// Told when the thread has ended.
    pub ended: oneshot::Receiver<()>,
}

/// Starts the thread. It ends when `stop` is cancelled, when nobody listens any more, or with an error that the loop hears.
/// If it can, it tells the server at the end what the loop has allowed until it settled.
pub fn spawn(
    settings: Settings,
    shared: Arc<Shared>,
    inputs: Sender<Input>,
    stop: CancellationToken,
) -> std::io::Result<Started> {
    let (identified, answer) = oneshot::channel();
    let (ending, ended) = oneshot::channel();
    let run = move || {
        // Dropped with the thread, whatever ends it.
        let _ending: oneshot::Sender<()> = ending;
        let _still = shared.still.clone().drop_guard();
        let _watch = Watch { part: "the stream", inputs: inputs.clone() };
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "cannot start the runtime of the replication stream");
                return;
            }
        };
        let work = async {
            let taken = stop.run_until_cancelled(take(&settings, identified)).await.flatten();
            let Some(mut replication) = taken else { return };
            match stop.run_until_cancelled(pump(&mut replication, &settings, &shared, &inputs)).await {
                // Nobody listens: the session is over already.
                Some(Err(error)) => {
                    let _ = inputs.send(Input::Failed(of_stream(error, &settings.publications)));
                    stop.cancel();
                }
                Some(Ok(())) | None => last_word(replication, &shared).await,
            }
        };
        runtime.block_on(work);
    };
    std::thread::Builder::new().name("stream".into()).spawn(run)?;
    Ok(Started { identified: answer, ended })
}

/// Connects, tells what the server is, and takes the slot once it may. `None`: it may not, or cannot; then that is told.
async fn take(settings: &Settings, identified: oneshot::Sender<Result<Identified, Error>>) -> Option<Replication> {
    let (replication, system, switches) = match identify(&settings.postgres).await {
        Ok(found) => found,
        Err(error) => {
            // Whoever asked is gone where this fails, here and below.
            let _ = identified.send(Err(error));
            return None;
        }
    };
    let (go, going) = oneshot::channel();
    let (started, start) = oneshot::channel();
    identified.send(Ok(Identified { system, switches, go, started: start })).ok()?;
    let go = going.await.ok()?;
    match take_slot(replication, settings, go).await {
        Ok(replication) => started.send(Ok(())).ok().map(|()| replication),
        Err(error) => {
            let _ = started.send(Err(error));
            None
        }
    }
}

/// The loop may still commit what it has begun. What it allows then is told, so that a restart is sent none of it again.
async fn last_word(replication: Replication, shared: &Shared) {
    shared.still.cancel();
    shared.settled.cancelled().await;
    let confirmed = Lsn(shared.confirmed.load(Ordering::Relaxed));
    match replication.stop(confirmed).await {
        Ok(()) => tracing::debug!(%confirmed, "the server knows how far we are"),
        Err(error) => tracing::debug!(%confirmed, "the last word did not reach the server: {}", service::chain(&error)),
    }
}

async fn identify(config: &postgres::Config) -> Result<(Replication, System, Vec<Switch>), Error> {
    let mut replication = Replication::connect(config).await?;
    let system = replication.identify().await?;
    let switches = if system.timeline > 1 { replication.timeline_history(system.timeline).await? } else { Vec::new() };
    Ok((replication, system, switches))
}

/// Waits for the slot: another instance may hold it, and only one may publish.
async fn take_slot(mut replication: Replication, settings: &Settings, go: Go) -> Result<Replication, Error> {
    let mut told = None;
    let mut make_failover = go.make_failover;
    loop {
        let taken = async {
            if make_failover {
                replication.make_failover(&settings.slot).await?;
                make_failover = false;
                tracing::info!(slot = settings.slot, "standbys that synchronise slots take the slot along from now on");
            }
            replication.start(&settings.slot, &settings.publications, settings.since).await
        };
        match taken.await {
            Ok(()) => return Ok(replication),
            Err(error @ Error::SlotActive { .. }) => {
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    tracing::info!("waiting: {text}");
                    told = Some(text);
                }
                tokio::time::sleep(SLOT_RETRY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn pump(
    replication: &mut Replication,
    settings: &Settings,
    shared: &Shared,
    inputs: &Sender<Input>,
) -> Result<(), crate::Error> {
    let mut tick = tokio::time::interval(CONFIRM_EVERY);
    let mut told = (Lsn::ZERO, tokio::time::Instant::now());
    let (mut received, mut asked) = (Lsn::ZERO, false);
    let mut frames = Vec::new();
    let mut bytes = 0;
    loop {
        while bytes < GROUP_BYTES {
            let Some(frame) = replication.next_buffered()? else { break };
            let (Frame::Data { end, .. } | Frame::Keepalive { end, .. }) = &frame;
            received = received.max(*end);
            match &frame {
                Frame::Data { payload, .. } => bytes += payload.len() + size_of::<Frame>(),
                Frame::Keepalive { reply, .. } => asked |= *reply,
            }
            frames.push(frame);
        }
        let more = bytes >= GROUP_BYTES;
        if !frames.is_empty() && !hand_over(&mut frames, &mut bytes, shared, inputs) {
            return Ok(());
        }
        let confirmed = Lsn(shared.confirmed.load(Ordering::Relaxed));
        let due = told.1.elapsed();
        if asked || due >= STATUS_EVERY || (confirmed > told.0 && due >= CONFIRM_EVERY) {
            replication.status(received, confirmed, confirmed, false).await?;
            if confirmed > told.0 {
                failpoint::reach_in_task("reported").await?;
            }
            told = (confirmed, tokio::time::Instant::now());
            asked = false;
        }
        let full = shared.waiting.load(Ordering::Acquire) >= settings.buffer_bytes_max;
        tokio::select! {
            () = std::future::ready(()), if more && !full => {}
            () = shared.released.notified(), if full => {}
            filled = replication.fill(), if !more && !full => filled?,
            _ = tick.tick() => {}
        }
    }
}

/// Up to 17 the server stands still for ever on a publication that is not there; from 18 on it says nothing.
fn of_stream(error: crate::Error, publications: &[String]) -> crate::Error {
    match error {
        crate::Error::Postgres(cause) if cause.sqlstate() == Some("42704") => {
            crate::Error::PublicationGone { publications: publications.join(", "), cause: Box::new(cause) }
        }
        error => error,
    }
}

/// `false`: nobody listens any more.
fn hand_over(frames: &mut Vec<Frame>, bytes: &mut usize, shared: &Shared, inputs: &Sender<Input>) -> bool {
    shared.waiting.fetch_add(*bytes, Ordering::AcqRel);
    inputs.send(Input::Frames(std::mem::take(frames), std::mem::take(bytes))).is_ok()
}
