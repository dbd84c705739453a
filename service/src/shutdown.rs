//! When to stop: at SIGTERM or SIGINT in order, at a second one at once.

use std::io;
use std::process;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Says that the process shall stop. Clones say the same.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Listens for the signals. From the first one on the token is cancelled; a second one ends the process with
    /// the code that shells give for it, 143 for SIGTERM and 130 for SIGINT. Needs a tokio runtime.
    pub fn listen() -> io::Result<Shutdown> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let shutdown = Shutdown::default();
        tokio::spawn(watch(terminate, interrupt, shutdown.clone()));
        Ok(shutdown)
    }

    /// What a part of the process waits for, or hands on as a child.
    pub fn token(&self) -> CancellationToken {
        self.0.clone()
    }

    /// Asks for the stop from within.
    pub fn request(&self) {
        self.0.cancel();
    }

    /// Whether the stop was asked for.
    pub fn requested(&self) -> bool {
        self.0.is_cancelled()
    }
}

async fn watch(mut terminate: Signal, mut interrupt: Signal, shutdown: Shutdown) {
    let (name, _) = either(&mut terminate, &mut interrupt).await;
    tracing::info!(signal = name, "stopping: what was taken is finished first, a second signal ends it at once");
    shutdown.request();
    let (_, code) = either(&mut terminate, &mut interrupt).await;
    process::exit(code);
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> (&'static str, i32) {
    tokio::select! {
        _ = terminate.recv() => ("SIGTERM", 143),
        _ = interrupt.recv() => ("SIGINT", 130),
    }
}
