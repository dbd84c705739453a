//! The addresses of brokers as people write them: `host:port`, `kafka://host:port`, `kafka+ssl://host:port`, in a list or
//! separated by commas.
//!
//! Pure: it resolves nothing and connects to nothing.

use std::fmt;

/// What a scheme in front of the addresses says about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// `kafka://`: no encryption.
    Plaintext,
    /// `kafka+ssl://`: TLS.
    Tls,
}

/// The brokers to begin with, in the order written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Addresses {
    pub(crate) scheme: Option<Scheme>,
    pub(crate) brokers: Vec<String>,
}

impl Addresses {
    /// Reads a list in which every element may hold several addresses. A scheme counts for all that follow it; two
    /// different ones are refused, because one client speaks one protocol.
    pub(crate) fn parse(list: &[String]) -> Result<Addresses, String> {
        let mut addresses = Addresses::default();
        for text in list.iter().flat_map(|element| element.split(',')).map(str::trim).filter(|text| !text.is_empty()) {
            let (scheme, rest) = scheme(text)?;
            match (addresses.scheme, scheme) {
                (Some(first), Some(other)) if first != other => {
                    return Err("mixes kafka:// and kafka+ssl://: write one of them for all brokers".to_owned());
                }
                (None, Some(_)) if !addresses.brokers.is_empty() => {
                    return Err(
                        "names a scheme for some brokers only: write it before the first, or before none".to_owned()
                    );
                }
                (None, Some(_)) => addresses.scheme = scheme,
                _ => {}
            }
            addresses.brokers.push(checked(rest.trim_end_matches('/'))?);
        }
        if addresses.brokers.is_empty() {
            return Err("names no broker: write host:port, several separated by commas".to_owned());
        }
        Ok(addresses)
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.brokers.join(","))
    }
}

/// The broker that a line of librdkafka speaks of, as `host:port`.
///
/// Such lines begin with `host:port/1: `, `ssl://host:port/bootstrap: ` or, for the connections to coordinators,
/// `GroupCoordinator: host:port: `.
pub(crate) fn of_line(line: &str) -> Option<&str> {
    line.splitn(3, ": ").take(2).find_map(|part| {
        let part = part.split_once("://").map_or(part, |(_, rest)| rest);
        let address = part.split_once('/').map_or(part, |(address, _)| address);
        let (host, port) = address.rsplit_once(':')?;
        let is_address = !host.is_empty() && !host.contains(' ') && port.parse::<u16>().is_ok();
        is_address.then_some(address)
    })
}

/// The line of librdkafka without the broker before it and the times behind it, which differ at each attempt.
pub(crate) fn without_prefix(line: &str) -> &str {
    let reason = of_line(line).and_then(|broker| {
        let (_, rest) = line.split_once(broker)?;
        rest.split_once(": ").map(|(_, reason)| reason)
    });
    let reason = reason.unwrap_or(line);
    reason.rsplit_once(" (after ").map_or(reason, |(reason, _)| reason)
}

fn scheme(text: &str) -> Result<(Option<Scheme>, &str), String> {
    match text.split_once("://") {
        None => Ok((None, text)),
        Some(("kafka", rest)) => Ok((Some(Scheme::Plaintext), rest)),
        Some(("kafka+ssl", rest)) => Ok((Some(Scheme::Tls), rest)),
        Some((other, _)) => {
            Err(format!("has the scheme {other}://: write kafka:// or kafka+ssl://, or only host:port"))
        }
    }
}

/// `host:port` with both parts there. An address may not carry a user: the faults that we print would show its password.
fn checked(address: &str) -> Result<String, String> {
    if address.contains('@') {
        return Err("holds a user or password: write them as username and password of [kafka]".to_owned());
    }
    let fault = || format!("holds {address:?}, which is not host:port: write for example broker-1.example.com:9092");
    let (host, port) = address.rsplit_once(':').ok_or_else(fault)?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let host_is_good =
        !host.is_empty() && !host.contains(char::is_whitespace) && (bracketed || !host.contains([':', '/']));
    let port_is_good = port.parse::<u16>().is_ok_and(|port| port != 0);
    if host_is_good && port_is_good { Ok(address.to_owned()) } else { Err(fault()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &[&str]) -> Result<Addresses, String> {
        Addresses::parse(&list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn lists_commas_and_schemes_are_understood() {
        let brokers = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        for (list, scheme, expected) in [
            (&["a:1"][..], None, &["a:1"][..]),
            (&["a:1, b:2,"], None, &["a:1", "b:2"]),
            (&["a:1", "b:2,c:3"], None, &["a:1", "b:2", "c:3"]),
            (&["kafka://a:1,kafka://b:2"], Some(Scheme::Plaintext), &["a:1", "b:2"]),
            (&["kafka+ssl://a:1,b:2/"], Some(Scheme::Tls), &["a:1", "b:2"]),
            (&["[::1]:9092"], None, &["[::1]:9092"]),
        ] {
            assert_eq!(parse(list), Ok(Addresses { scheme, brokers: brokers(expected) }), "{list:?}");
        }
    }

    #[test]
    fn what_is_no_broker_is_refused_with_what_to_write() {
        for (list, says) in [
            (&[][..], "names no broker"),
            (&[" , "], "names no broker"),
            (&["a"], "not host:port"),
            (&["a:"], "not host:port"),
            (&[":1"], "not host:port"),
            (&["a:0"], "not host:port"),
            (&["a:70000"], "not host:port"),
            (&["a b:1"], "not host:port"),
            (&["::1:9092"], "not host:port"),
            (&["http://a:1"], "has the scheme http://"),
            (&["kafka://a:1,kafka+ssl://b:2"], "mixes"),
            (&["a:1,kafka://b:2"], "some brokers only"),
        ] {
            let fault = parse(list).expect_err("this is no list of brokers");
            assert!(fault.contains(says), "{list:?}: {fault}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_not_repeated() {
        let fault = parse(&["kafka://me:secret@a:1"]).expect_err("a user has no place here");
        assert!(!fault.contains("secret"), "{fault}");
    }

    #[test]
    fn the_broker_is_found_in_lines_of_librdkafka() {
        for (line, broker) in [
            (
                "127.0.0.1:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed: Connection refused",
                Some("127.0.0.1:9092"),
            ),
            ("ssl://kafka-1:9093/1: SSL handshake failed: certificate verify failed", Some("kafka-1:9093")),
            ("GroupCoordinator: kafka-1:9092: Disconnected (after 12ms in state UP)", Some("kafka-1:9092")),
            ("sasl_ssl://[::1]:9093/bootstrap: Failed", Some("[::1]:9093")),
            ("1/1 brokers are down", None),
            ("Fatal error: Broker: Static consumer fenced", None),
        ] {
            assert_eq!(of_line(line), broker, "{line}");
        }
    }

    #[test]
    fn the_reason_is_what_stays_the_same_at_each_attempt() {
        for (line, reason) in [
            (
                "a:1/2: Connect to ipv4#1.2.3.4:1 failed: refused (after 0ms in state CONNECT)",
                "Connect to ipv4#1.2.3.4:1 failed: refused",
            ),
            ("ssl://a:1/bootstrap: SSL handshake failed (after 5ms in state X, 3 suppressed)", "SSL handshake failed"),
            ("GroupCoordinator: a:1: Disconnected", "Disconnected"),
            ("1/1 brokers are down", "1/1 brokers are down"),
        ] {
            assert_eq!(without_prefix(line), reason);
        }
    }
}
