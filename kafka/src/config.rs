//! The section `[kafka]`, and the settings of librdkafka that follow from it.
//!
//! Everything is checked before a socket opens. Passwords and private keys are never printed.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use service::config::{Reader, Secret};

use crate::address::{Addresses, Scheme};
use crate::brokers::Brokers;
use crate::context::Context;
use crate::error::{Cause, Error};

/// The largest batch that we send unless the configuration says otherwise: a little below what brokers take by default.
const BATCH_BYTES_MAX: usize = 1_000_000;

/// How often librdkafka tells the state of its connections, and so how late the return of a broker is noticed.
const STATISTICS_INTERVAL_MS: &str = "5000";

/// How to reach a Kafka cluster. Clones share the knowledge of which brokers are lost.
#[derive(Clone)]
pub struct Config {
    addresses: Addresses,
    security: Security,
    pub(crate) compression: String,
    batch_bytes_max: usize,
    brokers: Arc<Brokers>,
}

#[derive(Clone, Default)]
struct Security {
    tls: Option<Tls>,
    sasl: Option<Sasl>,
}

#[derive(Clone)]
struct Tls {
    authority: Option<Pem>,
    certificate: Option<Pem>,
    key: Option<Pem>,
    verify_hostname: bool,
}

/// A certificate or key as text, or the file that holds it.
#[derive(Clone)]
enum Pem {
    Text(Secret),
    File(String),
}

#[derive(Clone)]
struct Sasl {
    mechanism: String,
    username: String,
    password: Secret,
}

impl Config {
    /// Reads the section. Faults are noted in the reader; the result is of use only when there are none.
    ///
    /// Without a word about TLS (`tls`, or a scheme before the brokers) the connection is encrypted: a plaintext one must
    /// be asked for.
    pub fn read(section: &mut Reader<'_>) -> Config {
        let brokers: Vec<String> = section.required("brokers");
        let is_given = section.has("brokers");
        let addresses = Addresses::parse(&brokers).unwrap_or_else(|fault| {
            if is_given {
                section.fault("brokers", fault);
            }
            Addresses::default()
        });
        let security = Security { tls: read_tls(section, addresses.scheme), sasl: read_sasl(section) };
        let compression: String = section.or("compression", "lz4".to_owned());
        if !matches!(compression.as_str(), "none" | "lz4" | "zstd" | "snappy" | "gzip") {
            section.fault("compression", "unknown: write \"lz4\", \"zstd\", \"snappy\", \"gzip\" or \"none\"");
        }
        let batch_bytes_max = section.within("batch_bytes_max", BATCH_BYTES_MAX, 16_384..=16_777_216);
        Config { addresses, security, compression, batch_bytes_max, brokers: Arc::default() }
    }

    /// The brokers as configured, `host:port,host:port`.
    pub fn brokers(&self) -> String {
        self.addresses.to_string()
    }

    /// The largest batch that our producers send, in bytes. A topic must take at least that.
    pub fn batch_bytes_max(&self) -> usize {
        self.batch_bytes_max
    }

    /// The settings that every client of ours shares: addresses, security, patience, names.
    pub fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        let level = if tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG) {
            RDKafkaLogLevel::Info
        } else {
            RDKafkaLogLevel::Critical
        };
        client
            .set_log_level(level)
            .set("bootstrap.servers", self.brokers())
            .set("client.id", "tributary")
            .set("client.software.name", "tributary")
            .set("client.software.version", env!("CARGO_PKG_VERSION"))
            .set("socket.keepalive.enable", "true")
            .set("socket.nagle.disable", "true")
            // Half of a transaction's timeout: a request lost with its broker must leave time for another.
            .set("socket.timeout.ms", "30000")
            // After a broker's restart the default (10 s) costs more than the restart; measured.
            .set("reconnect.backoff.max.ms", "500")
            .set("log.connection.close", "false")
            .set("statistics.interval.ms", STATISTICS_INTERVAL_MS);
        self.security.apply(&mut client);
        client
    }

    /// The context for a client made from [`Config::client`].
    pub fn context(&self) -> Context {
        Context::new(self.brokers.clone())
    }

    pub(crate) fn refused(&self, error: rdkafka::error::KafkaError) -> Error {
        Error::Client { brokers: self.brokers(), cause: Cause::from(error) }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("brokers", &self.brokers())
            .field("protocol", &self.security.protocol())
            .field("username", &self.security.sasl.as_ref().map(|sasl| &sasl.username))
            .field("compression", &self.compression)
            .field("batch_bytes_max", &self.batch_bytes_max)
            .finish_non_exhaustive()
    }
}

impl Security {
    fn protocol(&self) -> &'static str {
        match (&self.tls, &self.sasl) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        }
    }

    fn apply(&self, client: &mut ClientConfig) {
        client.set("security.protocol", self.protocol());
        if let Some(tls) = &self.tls {
            let pems = [("ssl.ca", &tls.authority), ("ssl.certificate", &tls.certificate), ("ssl.key", &tls.key)];
            for (name, pem) in pems {
                match pem {
                    Some(Pem::Text(text)) => client.set(format!("{name}.pem"), text.expose()),
                    Some(Pem::File(path)) => client.set(format!("{name}.location"), path),
                    None => continue,
                };
            }
            let verified = if tls.verify_hostname { "https" } else { "none" };
            client.set("ssl.endpoint.identification.algorithm", verified);
        }
        if let Some(sasl) = &self.sasl {
            client
                .set("sasl.mechanism", &sasl.mechanism)
                .set("sasl.username", &sasl.username)
                .set("sasl.password", sasl.password.expose());
        }
    }
}

fn read_tls(section: &mut Reader<'_>, scheme: Option<Scheme>) -> Option<Tls> {
    let asked: Option<bool> = section.optional("tls");
    let is_on = match (asked, scheme) {
        (Some(true), Some(Scheme::Plaintext)) => {
            section.fault(
                "tls",
                "is true, and the brokers are written kafka://, without TLS: write kafka+ssl://, or no scheme",
            );
            true
        }
        (Some(false), Some(Scheme::Tls)) => {
            section.fault(
                "tls",
                "is false, and the brokers are written kafka+ssl://, with TLS: write kafka://, or no scheme",
            );
            false
        }
        (Some(is_on), _) => is_on,
        (None, scheme) => scheme != Some(Scheme::Plaintext),
    };
    let authority = read_pem(section, "ca");
    let certificate = read_pem(section, "certificate");
    let key = read_pem(section, "key");
    let verify_hostname: Option<bool> = section.optional("verify_hostname");
    match (&certificate, &key) {
        (Some(_), None) => section.fault("certificate_pem", "needs its key: give key_pem or key_file too"),
        (None, Some(_)) => {
            section.fault("key_pem", "needs its certificate: give certificate_pem or certificate_file too")
        }
        _ => {}
    }
    if !is_on {
        let given = [("ca_pem", authority.is_some()), ("certificate_pem", certificate.is_some())];
        for (name, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            section.fault(name, "has no meaning without TLS: write tls = true, or leave it out");
        }
        return None;
    }
    Some(Tls { authority, certificate, key, verify_hostname: verify_hostname.unwrap_or(true) })
}

fn read_pem(section: &mut Reader<'_>, name: &str) -> Option<Pem> {
    let (text_key, file_key) = (format!("{name}_pem"), format!("{name}_file"));
    let text: Option<Secret> = section.optional(&text_key);
    let file: Option<String> = section.optional(&file_key);
    match (text, file) {
        (Some(_), Some(_)) => {
            section.fault(&file_key, format!("is given beside {text_key}: keep one of them"));
            None
        }
        (Some(text), None) => {
            if !text.expose().contains("-----BEGIN ") {
                section.fault(
                    &text_key,
                    format!("is no PEM text (-----BEGIN …): write the text itself, or its path as {file_key}"),
                );
            }
            Some(Pem::Text(text))
        }
        (None, Some(path)) => {
            if let Err(error) = File::open(&path) {
                section.fault(&file_key, format!("cannot open {path:?}: {error}"));
            }
            Some(Pem::File(path))
        }
        (None, None) => None,
    }
}

fn read_sasl(section: &mut Reader<'_>) -> Option<Sasl> {
    let mechanism: Option<String> = section.optional("sasl_mechanism");
    let username: Option<String> = section.optional("username");
    let password: Option<Secret> = section.optional("password");
    let mechanism = match mechanism.as_deref() {
        Some("PLAIN" | "SCRAM-SHA-256" | "SCRAM-SHA-512") => mechanism,
        Some(_) => {
            section.fault("sasl_mechanism", "unknown: write \"PLAIN\", \"SCRAM-SHA-256\" or \"SCRAM-SHA-512\"");
            None
        }
        None => {
            if username.is_some() || password.is_some() {
                section.fault(
                    "sasl_mechanism",
                    "missing beside username or password: write \"PLAIN\", \"SCRAM-SHA-256\" or \"SCRAM-SHA-512\"",
                );
            }
            return None;
        }
    };
    for (key, is_given) in [("username", username.is_some()), ("password", password.is_some())] {
        if !is_given {
            section.fault(key, "missing: sasl_mechanism needs username and password");
        }
    }
    Some(Sasl { mechanism: mechanism?, username: username?, password: password? })
}

#[cfg(test)]
mod tests {
    use service::config::Document;

    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let document = Document::parse(text, std::iter::empty()).expect("the text is TOML");
        let config = {
            let mut section = document.root().section("kafka");
            Config::read(&mut section)
        };
        document.finish().map(|()| config).map_err(|error| error.faults().iter().map(|f| format!("{f}\n")).collect())
    }

    fn protocol(text: &str) -> String {
        let config = read(text).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        config.client().get("security.protocol").expect("always set").to_owned()
    }

    #[test]
    fn plaintext_must_be_asked_for() {
        assert_eq!(protocol("[kafka]\nbrokers = 'a:1'"), "ssl");
        assert_eq!(protocol("[kafka]\nbrokers = ['a:1', 'b:2']\ntls = false"), "plaintext");
        assert_eq!(protocol("[kafka]\nbrokers = 'kafka://a:1,b:2'"), "plaintext");
        assert_eq!(protocol("[kafka]\nbrokers = 'kafka+ssl://a:1'"), "ssl");
        let sasl = "sasl_mechanism = 'SCRAM-SHA-512'\nusername = 'u'\npassword = 'p'";
        assert_eq!(protocol(&format!("[kafka]\nbrokers = 'a:1'\n{sasl}")), "sasl_ssl");
        assert_eq!(protocol(&format!("[kafka]\nbrokers = 'kafka://a:1'\n{sasl}")), "sasl_plaintext");
    }

    #[test]
    fn every_fault_is_noted_with_what_to_write() {
        for (text, says) in [
            ("[kafka]", "brokers"),
            ("[kafka]\nbrokers = 'http://a:1'", "http://"),
            ("[kafka]\nbrokers = 'kafka://a:1'\ntls = true", "kafka+ssl://"),
            ("[kafka]\nbrokers = 'kafka+ssl://a:1'\ntls = false", "kafka://"),
            ("[kafka]\nbrokers = 'a:1'\nca_pem = 'ca.pem'", "ca_file"),
            ("[kafka]\nbrokers = 'a:1'\nca_file = '/there/is/none'", "cannot open"),
            ("[kafka]\nbrokers = 'a:1'\ncertificate_pem = '-----BEGIN CERTIFICATE-----'", "needs its key"),
            ("[kafka]\nbrokers = 'a:1'\ntls = false\nca_pem = '-----BEGIN CERTIFICATE-----'", "without TLS"),
            ("[kafka]\nbrokers = 'a:1'\nsasl_mechanism = 'GSSAPI'\nusername = 'u'\npassword = 'p'", "SCRAM-SHA-256"),
            ("[kafka]\nbrokers = 'a:1'\nusername = 'u'\npassword = 'p'", "sasl_mechanism"),
            ("[kafka]\nbrokers = 'a:1'\nsasl_mechanism = 'PLAIN'\nusername = 'u'", "password"),
            ("[kafka]\nbrokers = 'a:1'\ncompression = 'rar'", "lz4"),
            ("[kafka]\nbrokers = 'a:1'\nbroker = 'a:1'", "brokers"),
        ] {
            let faults = read(text).expect_err(text);
            assert!(faults.contains(says), "{text}: {faults}");
        }
    }

    #[test]
    fn a_missing_list_of_brokers_is_one_fault() {
        let faults = read("[kafka]").expect_err("brokers are required");
        assert_eq!(faults.lines().count(), 1, "{faults}");
    }

    #[test]
    fn secrets_are_not_printed() {
        let config = read("[kafka]\nbrokers = 'a:1'\nsasl_mechanism = 'PLAIN'\nusername = 'u'\npassword = 'hidden'");
        assert!(!format!("{config:?}").contains("hidden"));
    }
}
