//! Who proves what to whom, on a real server: both kinds of connections, with certificates made for the test.
//!
//! On PostgreSQL 15, whichever one is under test: of the builds that the tests have it alone speaks TLS.

mod authority;
mod proxy;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use harness::servers::{Durability, Postgres, Role};
use postgres::sqlstate::Severity;
use postgres::{Config, Error, Replication};
use service::config::Document;
use tempfile::TempDir;

use authority::{Authority, Pair};
use proxy::Way;

const MAJOR: u32 = 15;
/// Each role of the test proves itself in its own way, all with the same password.
const HBA: &str = "
hostssl all certified 127.0.0.1/32 cert
hostssl all clear     127.0.0.1/32 password
hostssl all hashed    127.0.0.1/32 md5
hostssl all trusted   127.0.0.1/32 trust
host    all all       127.0.0.1/32 scram-sha-256
";
const ROLES: &str = "
CREATE ROLE certified LOGIN REPLICATION;
CREATE ROLE trusted LOGIN REPLICATION;
CREATE ROLE bound LOGIN REPLICATION PASSWORD 'proof';
CREATE ROLE clear LOGIN REPLICATION PASSWORD 'proof';
SET password_encryption = 'md5';
CREATE ROLE hashed LOGIN REPLICATION PASSWORD 'proof';
";

/// A server that speaks TLS, and the files that are needed to believe it.
struct Server {
    postgres: Postgres,
    authority: Authority,
    folder: TempDir,
}

impl Server {
    async fn start(authority: Authority, own: &Pair) -> Server {
        let mut postgres = Postgres::start_major(MAJOR, Durability::Relaxed, &[]).await.expect("a server");
        let client = postgres.address().connect(Role::Superuser, "postgres").await.expect("it answers");
        client.batch_execute(ROLES).await.expect("the roles");
        for (name, text) in [
            ("server.crt", own.certificate.as_str()),
            ("server.key", &own.key),
            ("root.crt", &authority.pem),
            ("pg_hba.conf", HBA),
        ] {
            postgres.write(name, text).expect("a file of the server");
        }
        postgres.set("ssl", "on");
        postgres.set("ssl_ca_file", "root.crt");
        postgres.restart().await.expect("it takes its certificate");
        let folder = tempfile::tempdir().expect("a folder");
        let server = Server { postgres, authority, folder };
        server.file("ca.pem", &server.authority.pem, 0o644);
        server
    }

    /// A file of ours.
    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its permissions");
        path
    }

    /// How `role` connects, by `host`, with parameters of its own beside the authority.
    fn config(&self, host: &str, role: &str, parameters: &str) -> Config {
        let at = format!("{host}:{}", self.postgres.address().port);
        self.config_at(&at, role, parameters)
    }

    fn config_at(&self, at: &str, role: &str, parameters: &str) -> Config {
        let ca = self.folder.path().join("ca.pem");
        let ca =
            if parameters.contains("sslrootcert") { String::new() } else { format!("&sslrootcert={}", ca.display()) };
        let url = format!("postgresql://{role}:proof@{at}/postgres?connect_timeout=60{ca}{parameters}");
        Config::parse(&url).expect("a url")
    }
}

/// Both kinds of connections are let in, and over TLS where `is_tls`.
async fn lets_in(config: &Config, is_tls: bool) {
    let client = postgres::connect(config, "test").await.unwrap_or_else(|error| panic!("{config}: {error:?}"));
    let query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let found: bool = client.query_one(query, &[]).await.expect("it answers").get(0);
    assert_eq!(found, is_tls, "{config}");
    let mut replication = Replication::connect(config).await.unwrap_or_else(|error| panic!("{config}: {error:?}"));
    replication.identify().await.expect("it answers");
}

/// Both are refused, with the same words, among them `words`, and no retry cures it.
async fn refuses(config: &Config, words: &[&str]) {
    let told = |error: &Error| service::chain(error).to_string();
    let ordinary = postgres::connect(config, "test").await.map(drop).expect_err("it is let in");
    let replication = Replication::connect(config).await.map(drop).expect_err("replication is let in");
    assert_eq!(told(&ordinary), told(&replication), "both kinds of connections are alike");
    for word in words {
        assert!(told(&ordinary).contains(word), "{word:?}: {}", told(&ordinary));
    }
    assert!(!told(&ordinary).contains("proof@") && !told(&ordinary).contains(":proof"), "a password is printed");
    assert_eq!(ordinary.severity(), Severity::Fatal, "{ordinary}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_must_prove_who_it_is() {
    let authority = Authority::new();
    let own = authority.server("localhost");
    let mut server = Server::start(authority, &own).await;
    let config = |host: &str, parameters: &str| server.config(host, "bound", parameters);
    lets_in(&config("localhost", ""), true).await;
    lets_in(&config("127.0.0.1", "&sslmode=verify-ca"), true).await;
    lets_in(&config("localhost", "&sslmode=disable"), false).await;
    refuses(&config("127.0.0.1", ""), &["made out to another host", "sslmode=verify-ca"]).await;

    let other = server.file("other.pem", &Authority::new().pem, 0o644);
    let other = format!("&sslrootcert={}", other.display());
    refuses(&config("localhost", &other), &["an authority that is not trusted here", "sslrootcert"]).await;
    refuses(&config("localhost", &format!("{other}&sslmode=require")), &["not trusted here"]).await;
    refuses(&config("localhost", "&sslrootcert=/nowhere.pem"), &["cannot use /nowhere.pem as sslrootcert"]).await;

    let expired = server.authority.expired("localhost");
    for (name, text) in [("server.crt", &expired.certificate), ("server.key", &expired.key)] {
        server.postgres.write(name, text).expect("a file of the server");
    }
    server.postgres.restart().await.expect("it takes any certificate");
    refuses(&server.config("localhost", "bound", ""), &["has expired", "renew it"]).await;

    server.postgres.set("ssl", "off");
    server.postgres.restart().await.expect("it does without");
    refuses(&server.config("localhost", "bound", ""), &["refuses TLS", "sslmode=disable"]).await;
    server.postgres.stop().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn we_prove_who_we_are_by_a_certificate() {
    let authority = Authority::new();
    let own = authority.server("localhost");
    let mut server = Server::start(authority, &own).await;
    let (mine, strange) = (server.authority.client("certified"), Authority::new().client("certified"));
    let other = server.authority.client("somebody");
    let given = |pair: &Pair, name: &str, mode: u32| {
        let certificate = server.file(&format!("{name}.crt"), &pair.certificate, 0o644);
        let key = server.file(&format!("{name}.key"), &pair.key, mode);
        let parameters = format!("&sslcert={}&sslkey={}", certificate.display(), key.display());
        server.config("localhost", "certified", &parameters)
    };
    lets_in(&given(&mine, "mine", 0o600), true).await;
    // Root's own may be read by its group, as libpq has it; no other's.
    let by_group = given(&mine, "by-group", 0o640);
    let is_root = fs::metadata(server.folder.path()).map(|folder| std::os::unix::fs::MetadataExt::uid(&folder) == 0);
    match is_root.expect("it is there") {
        true => lets_in(&by_group, true).await,
        false => refuses(&by_group, &["mode 0640"]).await,
    }
    refuses(&given(&mine, "open", 0o644), &["may be read by others (mode 0644)", "chmod 600", "sslkey_pem"]).await;
    refuses(&given(&strange, "strange", 0o600), &["does not take our certificate", "ssl_ca_file"]).await;
    refuses(&given(&other, "other", 0o600), &["refuses the login", "made out to the user"]).await;
    let mixed = Pair { certificate: mine.certificate.clone(), key: other.key.clone() };
    refuses(&given(&mixed, "mixed", 0o600), &["as sslkey", "belong to its certificate"]).await;
    refuses(&server.config("localhost", "certified", ""), &["refuses the login", "give sslcert and sslkey"]).await;

    let text = format!(
        "[source]\nurl = 'postgresql://certified@localhost:{}/postgres'\nsslrootcert_pem = '''{}'''\nsslcert_pem = '''{}'''\nsslkey_pem = '''{}'''",
        server.postgres.address().port,
        server.authority.pem,
        mine.certificate,
        mine.key
    );
    let document = Document::parse(&text, std::iter::empty()).expect("valid TOML");
    let held = Config::read(&mut document.root().section("source"));
    document.finish().expect("it is sound");
    lets_in(&held, true).await;
    server.postgres.stop().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_proof_is_worth_nothing_to_a_machine_in_the_middle() {
    let authority = Authority::new();
    let own = authority.server("localhost");
    let mut server = Server::start(authority, &own).await;
    for binding in ["disable", "prefer", "require"] {
        lets_in(&server.config("localhost", "bound", &format!("&channel_binding={binding}")), true).await;
    }
    // Whoever asks for something else than a bound proof gets none, above all no password.
    for role in ["clear", "hashed", "trusted"] {
        lets_in(&server.config("localhost", role, ""), true).await;
        let required = server.config("localhost", role, "&channel_binding=require");
        refuses(&required, &["channel_binding=require", "does not offer SCRAM-SHA-256-PLUS"]).await;
    }

    let between = server.authority.server("localhost");
    for (way, binding, expected) in [
        (Way::Plain, "prefer", None),
        (Way::Plain, "require", Some("does not offer SCRAM-SHA-256-PLUS")),
        (Way::Tls, "disable", None),
        (Way::Tls, "prefer", Some("the certificate that we were shown is not the server's own")),
        (Way::Tls, "require", Some("the certificate that we were shown is not the server's own")),
        // The server hears that we could have bound, and so that its offer was taken away.
        (Way::TlsWithoutOffer, "prefer", Some("the certificate that we were shown is not the server's own")),
        (Way::TlsWithoutOffer, "require", Some("does not offer SCRAM-SHA-256-PLUS")),
    ] {
        let port = proxy::start(way, server.postgres.address().port, &between, &server.authority.pem).await;
        let config = server.config_at(&format!("localhost:{port}"), "bound", &format!("&channel_binding={binding}"));
        println!("{way:?}, channel_binding={binding}");
        match expected {
            None => lets_in(&config, way != Way::Plain).await,
            Some(words) => refuses(&config, &[words]).await,
        }
    }
    server.postgres.stop().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_defines_no_hash_binds_nothing() {
    let authority = Authority::ed25519();
    let own = authority.server("localhost");
    let mut server = Server::start(authority, &own).await;
    lets_in(&server.config("localhost", "bound", ""), true).await;
    let required = server.config("localhost", "bound", "&channel_binding=require");
    refuses(&required, &["defines no hash to bind to", "RSA or ECDSA"]).await;
    server.postgres.stop().await.expect("it ends");
}
