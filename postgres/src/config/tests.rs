use proptest::prelude::*;
use service::config::Document;

use super::*;

fn parse(text: &str) -> Config {
    Config::parse(text).unwrap_or_else(|faults| panic!("{text} was refused: {faults:?}"))
}

fn faults(text: &str) -> Vec<String> {
    Config::parse(text).map_or_else(|faults| faults.iter().map(ToString::to_string).collect(), |_| Vec::new())
}

#[test]
fn a_url_says_everything() {
    let config = parse(
        "postgresql://app:p%40ss%2Fw%C3%B6rd@db.example:6432/shop?sslmode=verify-ca&sslrootcert=/etc/ca+1.pem&connect_timeout=3",
    );
    assert_eq!(config.display(), "db.example:6432/shop as app");
    assert_eq!(config.password.expose(), "p@ss/wörd");
    assert_eq!(config.tls.mode, SslMode::VerifyCa);
    assert_eq!(config.tls.root_certificate, Some("/etc/ca+1.pem".into()));
    assert_eq!(config.connect_timeout, Duration::from_secs(3));
}

#[test]
fn what_a_url_leaves_out_has_a_safe_default() {
    let config = parse("postgres://app@db");
    assert_eq!(config.display(), "db:5432/app as app");
    assert_eq!(config.tls.mode, SslMode::VerifyFull);
    assert!(config.password.is_empty());
}

#[test]
fn names_are_taken_as_they_stand() {
    assert_eq!(parse("postgresql://App@[::1]:1/My%20Shop").display(), "[::1]:1/My Shop as App");
    assert_eq!(parse("postgresql://app@host/..?sslmode=require").database, "..");
    assert_eq!(parse("postgresql://app@host?sslrootcert=/etc/ca.pem").database, "app");
    assert_eq!(parse("postgresql://app@[::1]:1/x").host, "::1");
    assert_eq!(parse("postgresql://app@127.0.0.1/x").host, "127.0.0.1");
}

#[test]
fn every_fault_of_a_url_is_told_at_once() {
    let found = faults("postgresql://host/db?sslmode=prefer&sslmod=require&connect_timeout=0#rest");
    let expected = [
        "names no user: write postgresql://user@host:port/database",
        "has a # in it: write it as %23",
        "sslmode prefer may end in an unprotected connection without saying so: write verify-full, verify-ca, require or disable",
        "unknown parameter \"sslmod\": known are sslmode, sslrootcert, sslcert, sslkey and connect_timeout",
        "connect_timeout is a number of seconds from 1 to 600",
    ];
    assert_eq!(found, expected);
    for (bad, part) in [
        ("mysql://app@host/db", "begins with postgresql://"),
        ("host=db user=app", "not a url"),
        ("postgresql://app@host:port/db", "not a url"),
        ("postgresql://app@/db", "names no host"),
        ("postgresql://app@%2Frun%2Fpostgresql/db", "names no host"),
        ("postgresql://app%ff@host/db", "not valid UTF-8"),
        ("postgresql://app@host/db?sslmode=sometimes", "sslmode is disable, require, verify-ca or verify-full"),
    ] {
        let found = faults(bad);
        assert!(found.iter().any(|fault| fault.contains(part)), "{bad}: {found:?}");
    }
}

#[test]
fn a_password_is_never_printed() {
    let config = parse("postgresql://app:hunter2@host/db");
    assert!(!format!("{config:?} {config}").contains("hunter2"));
    for bad in ["postgresql://app:hunter2@ho st/db", "postgresql://app:hunter2#@host/db?x", "mysql://app:hunter2@host/"]
    {
        let found = Config::parse(bad).expect_err("it is wrong");
        assert!(!format!("{found:?} {}", faults(bad).join(" ")).contains("hunter2"), "{bad}: {found:?}");
    }
}

#[test]
fn keys_stand_over_the_url() {
    let text = r#"
[source]
url = "postgresql://app:old@host/db?sslmode=require"
password = "new"
sslmode = "verify-ca"
sslrootcert = "ca.pem"
sslcert = "me.pem"
"#;
    let document = Document::parse(text, std::iter::empty()).expect("valid TOML");
    let mut root = document.root();
    let config = Config::read(&mut root.section("source"));
    root.finish();
    assert_eq!(config.password.expose(), "new");
    assert_eq!(config.tls.mode, SslMode::VerifyCa);
    let error = document.finish().expect_err("a certificate without its key");
    assert_eq!(
        error.to_string(),
        "the configuration cannot be used:\n  line 3: source.url: sslcert and sslkey belong together: give both or none"
    );
}

#[test]
fn a_missing_url_is_one_fault() {
    let document = Document::parse("", std::iter::empty()).expect("valid TOML");
    Config::read(&mut document.root().section("source"));
    let error = document.finish().expect_err("no url");
    assert_eq!(error.faults().len(), 1, "{error}");
    assert!(error.to_string().contains("source.url: missing"), "{error}");
}

proptest! {
    #[test]
    fn every_user_and_password_can_be_written(user in "[ -~é]{1,12}", password in "[ -~é]{0,12}", database in "[ -~é]{1,12}") {
        let encode = |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        let url = format!("postgresql://{}:{}@host/{}", encode(&user), encode(&password), encode(&database));
        let config = parse(&url);
        prop_assert_eq!(config.user, user);
        prop_assert_eq!(config.password.expose(), password);
        prop_assert_eq!(config.database, database);
    }

    #[test]
    fn no_url_makes_it_panic(text in "(postgresql://)?[a-z:@/?&=%#\\[\\] .0-9é]{0,30}") {
        let _ = Config::parse(&text);
    }
}
