//! Tools of other people's making read our topics and our lag as they read Debezium's.

use std::time::Duration;

use harness::World;
use harness::process::Part;
use harness::servers::{Kafka, Role};
use harness::table::Table;

/// One line a row change by kcat, then the fold that any Debezium consumer does, in jq: the last `after` of each key.
const FOLD: &str = r#"kcat -b "$1" -C -t "$2" -e -q -X isolation.level=read_committed -J |
    jq -cs '[ .[] | select(.key != null and .payload != null) | .payload |= fromjson ]
            | sort_by(.partition, .offset) | group_by(.key)
            | map(last.payload | select(.op != "d") | .after) | sort_by(.id)'"#;

#[tokio::test(flavor = "multi_thread")]
async fn kcat_and_kafkas_own_tools_read_our_topics_and_our_lag() {
    let users = Table::new("public.users", &["id"], "id bigint PRIMARY KEY, name text, active boolean, paid numeric");
    let mut world = World::builder().table(users.clone()).start().await;
    world
        .in_source("INSERT INTO users SELECT i, 'user ' || i, i % 2 = 0, i / 4.0 FROM generate_series(1, 100) i")
        .await;
    let mut run = world.start(Part::Run);
    world.until_equal().await;
    world.in_source("UPDATE users SET name = upper(name) WHERE id % 3 = 0; DELETE FROM users WHERE id % 5 = 0").await;
    world.until_equal().await;

    let topic = world.topic_name(&users);
    let folded = sh(FOLD, &[world.kafka(), &topic]).await;
    let source = world.source(Role::Superuser).await;
    let rows = "SELECT jsonb_agg(jsonb_build_object('id', id, 'name', name, 'active', active, 'paid', paid::text) ORDER BY id)::text FROM users";
    let rows: String = source.query_one(rows, &[]).await.expect("the source answers").get(0);
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    assert_eq!(read(&folded), read(&rows), "kcat and jq fold the topic to the table");

    let group = schemas::topic::group_id(world.prefix(), "rdb");
    world
        .until("Kafka's own tool reports a lag of 0 in every partition", Duration::from_secs(90), async || {
            let lags = lags(world.kafka(), &group, &topic).await?;
            let all = lags.len() == 4 && lags.iter().all(|lag| lag == "0");
            if all { Ok(()) } else { Err(format!("{lags:?}")) }
        })
        .await;
    run.stop().await.expect("it ends");
    world.in_source("INSERT INTO users SELECT i, 'late' FROM generate_series(1001, 1040) i").await;
    let mut source = world.start(Part::Source);
    world
        .until("Kafka's own tool reports what the stopped group lacks", Duration::from_secs(90), async || {
            let lags = lags(world.kafka(), &group, &topic).await?;
            let behind: i64 = lags.iter().filter_map(|lag| lag.parse::<i64>().ok()).sum();
            // At least the rows; transaction markers count as offsets too.
            if behind >= 40 { Ok(()) } else { Err(format!("{lags:?}")) }
        })
        .await;
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// The column LAG of kafka-consumer-groups, by partition.
async fn lags(brokers: &str, group: &str, topic: &str) -> Result<Vec<String>, String> {
    let class = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
    let printed = Kafka::tool(class, &["--bootstrap-server", brokers, "--describe", "--group", group]).await;
    let printed = printed.map_err(|cause| format!("{cause:?}"))?;
    let mut lines = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let header = lines.find(|words| words.contains(&"LAG")).ok_or_else(|| format!("no table in {printed:?}"))?;
    let at =
        |name: &str| header.iter().position(|word| *word == name).ok_or_else(|| format!("no {name} in {header:?}"));
    let (topic_at, lag_at) = (at("TOPIC")?, at("LAG")?);
    let of_topic = lines.filter(|words| words.get(topic_at) == Some(&topic));
    Ok(of_topic.filter_map(|words| words.get(lag_at).map(|lag| (*lag).to_owned())).collect())
}

async fn sh(script: &str, arguments: &[&str]) -> String {
    let output = tokio::process::Command::new("sh").args(["-c", script, "sh"]).args(arguments).output().await;
    let output = output.expect("sh starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}
