use proptest::prelude::*;

use super::*;

/// Reads `text` with `env` over it by `read`, and returns what was read or all that is wrong.
fn check<T>(text: &str, env: &[(&str, &str)], read: impl FnOnce(&mut Reader<'_>) -> T) -> Result<T, Vec<String>> {
    let lines = |error: Error| error.faults().iter().map(ToString::to_string).collect::<Vec<_>>();
    let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let document = Document::parse(text, env).map_err(lines)?;
    let mut root = document.root();
    let value = read(&mut root);
    root.finish();
    document.finish().map_err(lines)?;
    Ok(value)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Broker {
    brokers: String,
    tls: bool,
    port: u16,
    topics: Vec<String>,
}

fn broker(root: &mut Reader<'_>) -> Broker {
    let mut section = root.section("kafka");
    Broker {
        brokers: section.required("brokers"),
        tls: section.or("tls", true),
        port: section.or("port", 9092),
        topics: section.optional("topics").unwrap_or_default(),
    }
}

#[test]
fn a_file_is_read_and_defaults_stand_in() {
    let text = "[kafka]\nbrokers = \"a:1\"\ntopics = [\"x\", \"y\"]";
    let topics = vec!["x".to_owned(), "y".to_owned()];
    let expected = Broker { brokers: "a:1".to_owned(), tls: true, port: 9092, topics };
    assert_eq!(check(text, &[], broker), Ok(expected));
}

#[test]
fn the_environment_stands_over_the_file() {
    let env = [
        ("TRIBUTARY_KAFKA__BROKERS", "b:2"),
        ("TRIBUTARY_KAFKA__TLS", "false"),
        ("TRIBUTARY_KAFKA__PORT", "19092"),
        ("TRIBUTARY_KAFKA__TOPICS", "x, y,"),
        ("PATH", "/bin"),
    ];
    let topics = vec!["x".to_owned(), "y".to_owned()];
    let expected = Broker { brokers: "b:2".to_owned(), tls: false, port: 19092, topics };
    assert_eq!(check("[kafka]\nbrokers = \"a:1\"", &env, broker).as_ref(), Ok(&expected));
    assert_eq!(check("", &env, broker), Ok(expected));
}

#[test]
fn a_variable_finds_the_name_as_the_file_writes_it() {
    let read = |root: &mut Reader<'_>| {
        let groups = root.named_sections("groups");
        groups.into_iter().map(|(name, mut group)| (name, group.required::<String>("to"))).collect::<Vec<_>>()
    };
    let text = "[groups.RDB]\nto = \"a\"\n[groups.web-hooks]\nto = \"b\"";
    let env = [("TRIBUTARY_GROUPS__RDB__TO", "c"), ("TRIBUTARY_GROUPS__WEB_HOOKS__TO", "d")];
    let expected = [("RDB".to_owned(), "c".to_owned()), ("web-hooks".to_owned(), "d".to_owned())];
    assert_eq!(check(text, &env, read).as_deref(), Ok(&expected[..]));
}

/// Kubernetes sets these for a service called `tributary`.
#[test]
fn an_orchestrators_variables_are_left_alone() {
    let env = [
        ("TRIBUTARY_PORT", "tcp://10.0.0.1:9400"),
        ("TRIBUTARY_PORT_9400_TCP_ADDR", "10.0.0.1"),
        ("TRIBUTARY_SERVICE_HOST", "10.0.0.1"),
        ("TRIBUTARY_PREFIX", "shop"),
    ];
    assert_eq!(check("", &env, |root| root.required::<String>("prefix")), Ok("shop".to_owned()));
}

#[test]
fn every_fault_is_told_at_once_in_the_order_of_the_file() {
    let text = r#"
prefix = 7
[kafka]
broker = "a:1"
port = 70000
tls = "yes"
topics = [1]
[unheard]
key = "value"
"#;
    let env = [("TRIBUTARY_KAFKA__FLAVOUR", "red"), ("TRIBUTARY_KAFKA__", "1")];
    let read = |root: &mut Reader<'_>| {
        root.required::<String>("prefix");
        broker(root);
    };
    let expected = [
        "line 2: prefix: expected a text in double quotes, found a whole number",
        "line 4: kafka.broker: unknown key: did you mean \"brokers\"?",
        "line 5: kafka.port: expected a whole number from 0 to 65535, found 70000",
        "line 6: kafka.tls: expected true or false, found a text",
        "line 7: kafka.topics: expected a text in double quotes, found a whole number",
        "line 8: unheard: unknown section: known here are kafka, prefix",
        "environment variable TRIBUTARY_KAFKA__: names no key: expected TRIBUTARY_<SECTION>__<KEY>",
        "environment variable TRIBUTARY_KAFKA__FLAVOUR: kafka.flavour: unknown key: known here are brokers, port, tls, topics",
        "kafka.brokers: missing: give it in the file, or as TRIBUTARY_KAFKA__BROKERS",
    ];
    let found = check(text, &env, read).expect_err("it is full of faults");
    assert_eq!(found, expected);
}

#[test]
fn a_misspelt_key_is_recognised() {
    for (written, meant) in [("tsl", "tls"), ("prot", "port"), ("topic", "topics"), ("broker", "brokers")] {
        let text = format!("[kafka]\nbrokers = \"a:1\"\n{written} = 1");
        let found = check(&text, &[], broker).expect_err("it is misspelt");
        assert_eq!(found, [format!("line 3: kafka.{written}: unknown key: did you mean \"{meant}\"?")]);
    }
}

#[test]
fn a_reader_that_was_never_finished_still_refuses_unknown_keys() {
    let read = |root: &mut Reader<'_>| drop(root.section("kafka"));
    assert_eq!(check("[kafka]\nx = 1", &[], read), Err(vec!["line 2: kafka.x: unknown key".to_owned()]));
}

#[test]
fn a_value_where_a_section_belongs_is_a_fault() {
    let found = check("kafka = \"a:1\"", &[], |root| root.optional_section("kafka").is_some());
    assert_eq!(found, Err(vec!["line 1: kafka: expected the section [kafka], found a text".to_owned()]));
    let found = check("[kafka]\nbrokers = 1", &[("TRIBUTARY_KAFKA__BROKERS__X", "1")], |root| {
        root.section("kafka").has("brokers")
    });
    assert_eq!(found, Err(vec!["environment variable TRIBUTARY_KAFKA__BROKERS__X: brokers is no section".to_owned()]));
}

#[test]
fn an_absent_section_is_empty_and_an_optional_one_is_none() {
    assert!(check("", &[], broker).is_err(), "its required key is missing");
    assert_eq!(check("", &[], |root| root.optional_section("http").is_some()), Ok(false));
    assert_eq!(check("[http]", &[], |root| root.optional_section("http").is_some()), Ok(true));
}

#[test]
fn texts_are_parsed_and_their_own_errors_are_told() {
    let read = |root: &mut Reader<'_>| {
        let address = root.parsed::<std::net::IpAddr>("address");
        let addresses = root.parsed_list::<std::net::IpAddr>("addresses");
        (address, addresses, root.within("share", 4_u32, 1..=8), root.parsed_required::<u16>("port"))
    };
    let ip = |text: &str| text.parse().expect("an address");
    let text = "address = \"::1\"\naddresses = [\"1.1.1.1\", \"2.2.2.2\"]\nport = \"5\"";
    assert_eq!(check(text, &[], read), Ok((Some(ip("::1")), vec![ip("1.1.1.1"), ip("2.2.2.2")], 4, Some(5))));
    let text = "address = \"x\"\naddresses = [\"y\", \"1.1.1.1\", \"z\"]\nshare = 9";
    let expected = [
        "line 1: address: invalid IP address syntax",
        "line 2: addresses: \"y\": invalid IP address syntax",
        "line 2: addresses: \"z\": invalid IP address syntax",
        "line 3: share: 9 is not within 1 and 8",
        "port: missing: give it in the file, or as TRIBUTARY_PORT",
    ];
    assert_eq!(check(text, &[], read).expect_err("four are wrong"), expected);
}

#[test]
fn a_secret_is_never_printed() {
    let text = "password = \"hunter2\"\nother = 5";
    let secret = check(text, &[], |root| {
        root.required::<u32>("other");
        root.required::<Secret>("password")
    });
    let secret = secret.expect("it is well-formed");
    assert_eq!(secret.expose(), "hunter2");
    assert_eq!(format!("{secret:?}"), "[secret]");
    for text in ["password = \"hunter2", "password = hunter2", "password = \"hunter2\"\npassword = \"hunter2\""] {
        let error = Document::parse(text, std::iter::empty()).expect_err("it is not TOML");
        let printed = format!("{error} {error:?}");
        assert!(!printed.contains("hunter2"), "{printed}");
        assert!(printed.contains("line "), "{printed}");
    }
    let found = check("password = \"hunter2\"", &[], |root| root.required::<u32>("password"));
    let found = found.expect_err("a text is no number");
    assert_eq!(found, ["line 1: password: expected a whole number from 0 to 4294967295, found a text"]);
}

#[test]
fn a_missing_file_says_how_to_get_one() {
    let error = Document::read(Path::new("/nowhere/tributary.toml"), std::iter::empty()).expect_err("not there");
    let expected = "cannot read /nowhere/tributary.toml: name the configuration with --config FILE, or write one with `tributary init`";
    assert_eq!(error.to_string(), expected);
}

proptest! {
    #[test]
    fn what_the_file_and_the_environment_say_is_the_same(number in any::<i64>(), truth in any::<bool>(), text in "[ -~]{0,12}") {
        let read = |root: &mut Reader<'_>| {
            let mut section = root.section("s");
            (section.required::<i64>("number"), section.required::<bool>("truth"), section.required::<String>("text"))
        };
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        let file = format!("[s]\nnumber = {number}\ntruth = {truth}\ntext = \"{quoted}\"");
        let (number_text, truth_text) = (number.to_string(), truth.to_string());
        let env = [("TRIBUTARY_S__NUMBER", number_text.as_str()), ("TRIBUTARY_S__TRUTH", &truth_text), ("TRIBUTARY_S__TEXT", &text)];
        prop_assert_eq!(check(&file, &[], read), Ok((number, truth, text.clone())));
        prop_assert_eq!(check("", &env, read), Ok((number, truth, text.clone())));
    }

    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]a-c=.\"'#\n0-9{}, é-]{0,40}") {
        let _ = check(&text, &[], |root| root.section("a").optional::<u16>("b"));
    }
}
