//! A small server for those who watch: alive, ready, metrics.

mod health;

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Reader;

pub use health::Health;

/// How often the recorder folds what was measured since.
const UPKEEP: std::time::Duration = std::time::Duration::from_secs(5);

/// The section `[http]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where to listen, such as `127.0.0.1:9400`. Port 0 takes a free one.
    pub listen: SocketAddr,
}

impl Config {
    /// Reads `listen` of the section `[http]`.
    pub fn read(section: &mut Reader<'_>) -> Config {
        let listen = section.optional::<String>("listen").map(|text| text.parse());
        if let Some(Err(_)) = listen {
            section.fault("listen", "expected an address and a port, as in \"127.0.0.1:9400\"");
        }
        let default = SocketAddr::from(([127, 0, 0, 1], 9400));
        Config { listen: listen.and_then(Result::ok).unwrap_or(default) }
    }
}

/// What can fail at the start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: choose another [http] listen, or leave the section out")]
    Listen {
        /// The address of the configuration.
        address: SocketAddr,
        /// What the operating system said.
        #[source]
        cause: io::Error,
    },
    /// Metrics are collected elsewhere in this process.
    #[error("cannot collect metrics: a recorder is installed already")]
    Recorder,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Serves `/healthz`, `/readyz` and `/metrics` until `stop` is cancelled.
    pub async fn start(config: &Config, health: Health, stop: CancellationToken) -> Result<Server, Error> {
        let address = config.listen;
        let refused = |cause| Error::Listen { address, cause };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let recorder = PrometheusBuilder::new().install_recorder().map_err(|_| Error::Recorder)?;
        let router = router(health, recorder.clone());
        let task = tokio::spawn(async move {
            let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
            tokio::select! {
                ended = served => if let Err(error) = ended {
                    tracing::error!("the http server ended: {error}");
                },
                () = upkeep(recorder) => {}
            }
        });
        tracing::info!(%address, "serving /healthz, /readyz and /metrics");
        Ok(Server { address, task })
    }

    /// Waits until it has ended: after the stop, when the last answer is sent.
    pub async fn stopped(mut self) {
        if let Err(error) = (&mut self.task).await {
            tracing::error!("the http server ended: {error}");
        }
    }

    /// Where it listens, with the true port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn upkeep(recorder: PrometheusHandle) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        recorder.run_upkeep();
    }
}

fn router(health: Health, recorder: PrometheusHandle) -> Router {
    Router::new()
        .route("/healthz", get(|State(health): State<Health>| async move { answer(health.alive()) }))
        .route("/readyz", get(|State(health): State<Health>| async move { answer(health.readiness()) }))
        .route("/metrics", get(move || async move { recorder.render() }))
        .with_state(health)
}

fn answer(verdict: Result<String, String>) -> (StatusCode, String) {
    match verdict {
        Ok(text) => (StatusCode::OK, text),
        Err(text) => (StatusCode::SERVICE_UNAVAILABLE, text),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut connection = TcpStream::connect(address).await.expect("the server listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.expect("the server reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.expect("the server answers");
        answer
    }

    /// One test for the whole server: a process has one recorder.
    #[tokio::test]
    async fn those_who_watch_are_told_the_truth() {
        let (health, stop) = (Health::new(), CancellationToken::new());
        let config = Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let server = Server::start(&config, health.clone(), stop.clone()).await.expect("a free port");
        assert!(get(server.address(), "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(server.address(), "/readyz").await.starts_with("HTTP/1.1 503"), "nothing is ready yet");

        health.ready("source", false);
        health.ready("group rdb", true);
        assert!(get(server.address(), "/readyz").await.ends_with("group rdb: ready\nsource: not ready\n"));
        health.ready("source", true);
        assert!(get(server.address(), "/readyz").await.starts_with("HTTP/1.1 200"));

        health.failed("source", "the slot is lost");
        for path in ["/readyz", "/healthz"] {
            let answer = get(server.address(), path).await;
            assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("source: the slot is lost"), "{answer}");
        }

        metrics::counter!("tributary_records_total").increment(3);
        assert!(get(server.address(), "/metrics").await.contains("tributary_records_total 3"));

        let again = Server::start(&Config { listen: server.address() }, health, stop.clone()).await;
        assert!(matches!(again, Err(Error::Listen { .. })), "the port is taken");
        stop.cancel();
        server.stopped().await;
    }
}
