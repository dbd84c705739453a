//! One database on several hosts: which of them it is that a connection ends up with.

use crate::config::{Config, Found};
use crate::error::Error;

/// Tries the hosts in order and takes the first that will do, with the configuration that names this one alone.
///
/// Every host is tried, whatever was wrong with those before it: during a failover the old primary may refuse, hang or
/// show another certificate, and none of that says anything of the next.
pub(crate) async fn first<T, F>(config: &Config, attempt: impl Fn(Config) -> F) -> Result<(T, Config), Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut failures = Vec::new();
    for one in config.each() {
        match attempt(one.clone()).await {
            Ok(connection) => return Ok((connection, one)),
            Err(error) => {
                tracing::debug!(server = %one, "a host of several will not do: {}", service::chain(&error));
                failures.push(error);
            }
        }
    }
    Err(Error::of_hosts(failures))
}

/// Whether the server at the one host of `config` is what was asked for.
pub(crate) fn judge(config: &Config, found: Found) -> Result<(), Error> {
    match config.target_session.objection(found) {
        None => Ok(()),
        Some(found) => {
            Err(Error::WrongSession { server: config.display(), found, wanted: config.target_session.as_str() })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::sqlstate::Severity;

    fn config() -> Config {
        Config::parse("postgresql://app@one:1,two:2,three:3/shop").expect("a url")
    }

    fn down(config: &Config) -> Error {
        Error::Unreachable { server: config.display(), cause: io::ErrorKind::ConnectionRefused.into() }
    }

    #[tokio::test]
    async fn the_first_that_will_do_is_taken_and_the_rest_left_alone() {
        let asked = std::cell::RefCell::new(Vec::new());
        let (port, one) = first(&config(), async |one| {
            asked.borrow_mut().push(one.host().port);
            if one.host().port == 2 { Ok(one.host().port) } else { Err(down(&one)) }
        })
        .await
        .expect("the second will do");
        assert_eq!((port, one.display()), (2, "two:2/shop as app".to_owned()));
        assert_eq!(asked.into_inner(), [1, 2]);
    }

    #[tokio::test]
    async fn when_none_will_do_the_failure_of_each_is_told() {
        let failure = first(&config(), async |one| match one.host().port {
            1 => Err::<(), _>(down(&one)),
            2 => judge(&one, Found { is_standby: true, is_read_only: false }).map(|()| unreachable!("it is a standby")),
            _ => Err(Error::TlsRefused { server: one.display() }),
        })
        .await
        .expect_err("none will do");
        let told = failure.to_string();
        for part in [
            "none of the hosts will do",
            "cannot reach one:1/shop as app",
            "connection refused",
            "two:2/shop as app is a standby",
            "target_session_attrs=read-write",
            "three:3/shop as app refuses TLS",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        // One of them may come back.
        assert_eq!(failure.severity(), Severity::Transient);
    }

    #[tokio::test]
    async fn what_no_host_can_cure_is_not_waited_for() {
        let failure = first(&config(), async |one| Err::<(), _>(Error::TlsRefused { server: one.display() })).await;
        assert_eq!(failure.expect_err("none will do").severity(), Severity::Fatal);
    }

    #[tokio::test]
    async fn a_single_host_fails_with_its_own_error() {
        let config = Config::parse("postgresql://app@one/shop").expect("a url");
        let failure = first(&config, async |one| Err::<(), _>(down(&one))).await.expect_err("it is down");
        assert!(matches!(failure, Error::Unreachable { .. }), "{failure}");
    }
}
