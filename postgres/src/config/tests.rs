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
    assert!(matches!(&config.tls.root_certificate, Some(Pem::File(path)) if path.as_os_str() == "/etc/ca+1.pem"));
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
    assert_eq!(parse("postgresql://app@[::1]:1/x").host().name, "::1");
    assert_eq!(parse("postgresql://app@127.0.0.1/x").host().name, "127.0.0.1");
}

#[test]
fn a_url_may_name_several_hosts() {
    let config = parse("postgresql://app:a%2Cb@one:1,[::1]:2,three/shop?connect_timeout=3");
    assert_eq!(config.display(), "one:1,[::1]:2,three:5432/shop as app");
    assert_eq!(config.password.expose(), "a,b");
    assert_eq!(config.target_session, TargetSession::ReadWrite, "one of several is wanted for a reason");
    let each: Vec<String> = config.each().map(|one| one.display()).collect();
    assert_eq!(each, ["one:1/shop as app", "[::1]:2/shop as app", "three:5432/shop as app"]);
    assert!(config.each().all(|one| one.target_session == TargetSession::ReadWrite));

    let any = parse("postgresql://app@one,two/shop?target_session_attrs=any");
    assert_eq!(any.target_session, TargetSession::Any);
    assert_eq!(parse("postgresql://app@one/shop").target_session, TargetSession::Any);
}

#[test]
fn every_fault_of_a_url_is_told_at_once() {
    let found = faults("postgresql://host/db?sslmode=prefer&sslmod=require&connect_timeout=0#rest");
    let expected = [
        "names no user: write postgresql://user@host:port/database",
        "has a # in it: write it as %23",
        "sslmode prefer may end in an unprotected connection without saying so: write verify-full, verify-ca, require or disable",
        "unknown parameter \"sslmod\": known are target_session_attrs, sslmode, sslrootcert, sslcert, sslkey, channel_binding and connect_timeout",
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
        ("postgresql://app@one,/db", "names no host"),
        ("postgresql://app@one:1,two:x/db", "not a url"),
        ("postgresql://app@one,two/db?target_session_attrs=standby", "any, read-write or primary"),
        ("postgresql://app@host/db?channel_binding=always", "disable, prefer (the default) or require"),
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

/// What `[source]` with these lines says, or what is wrong with it.
fn section(lines: &str) -> Result<Config, String> {
    let text = format!("[source]\n{lines}");
    let document = Document::parse(&text, std::iter::empty()).expect("valid TOML");
    let mut root = document.root();
    let config = Config::read(&mut root.section("source"));
    root.finish();
    document.finish().map(|()| config).map_err(|error| error.to_string())
}

#[test]
fn certificates_may_stand_in_the_configuration_itself() {
    let url = "url = 'postgresql://app@host/db?sslrootcert=/etc/ca.pem'\n";
    let keys = "sslrootcert_pem = 'A'\nsslcert_pem = 'B'\nsslkey_pem = 'hunter2'\n";
    let config = section(&format!("{url}{keys}")).expect("it is sound");
    assert!(
        matches!(&config.tls.root_certificate, Some(Pem::Text { key: "sslrootcert_pem", text }) if text.expose() == "A")
    );
    assert!(matches!(&config.tls.key, Some(pem) if pem.to_string() == "the text of sslkey_pem"));
    assert!(!format!("{config:?}").contains("hunter2"));

    let both = section(&format!("{url}{keys}sslkey = '/etc/key.pem'\n")).expect_err("a file and a text");
    assert!(both.contains("sslkey_pem: sslkey names a file already"), "{both}");
    let system = section("url = 'postgresql://app@host/db?sslrootcert=system'").expect("it is sound");
    assert!(system.tls.root_certificate.is_none(), "libpq's word for the system's own authorities");
}

#[test]
fn a_bound_proof_needs_tls() {
    let config = section("url = 'postgresql://app@host/db'\nchannel_binding = 'require'").expect("it is sound");
    assert_eq!(config.channel_binding, ChannelBinding::Require);
    let without = section("url = 'postgresql://app@host/db?sslmode=disable&channel_binding=require'");
    assert!(without.expect_err("there is no TLS").contains("channel_binding=require needs TLS"));
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
