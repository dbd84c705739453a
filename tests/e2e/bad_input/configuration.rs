//! Faults of the configuration, passwords and addresses.

use harness::World;
use harness::port;
use harness::process::Part;
use harness::servers::Role;

use super::{nothing_is_touched, refuses, users};

#[tokio::test]
async fn every_fault_of_a_configuration_is_told_at_once() {
    let mut world = World::builder().table(users()).start().await;
    let mut configuration = world.configuration.clone();
    configuration
        .set("source.tabels", vec!["public.users"])
        .remove("kafka.brokers")
        .set("source.topics.partitions", "many")
        .set("groups.rdb.on_error", "ignore");
    for part in [Part::Source, Part::Sink, Part::Run] {
        let words =
            ["source.tabels", "tables", "kafka.brokers", "source.topics.partitions", "groups.rdb.on_error", "park"];
        refuses(&mut world, part, configuration.clone(), &words).await;
    }
    nothing_is_touched(&world).await;
    world.finish().await;
}

#[tokio::test]
async fn a_missing_value_is_named() {
    let mut world = World::builder().table(users()).start().await;
    let mut configuration = world.configuration.clone();
    configuration.remove("source.url").remove("prefix");
    refuses(&mut world, Part::Source, configuration, &["source.url", "prefix"]).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

#[tokio::test]
async fn a_wrong_password_of_the_source_is_told() {
    let mut world = World::builder().table(users()).start().await;
    let mut configuration = world.configuration.clone();
    configuration.environment("TRIBUTARY_SOURCE__PASSWORD", Role::Application.password());
    let words = ["refuses the login", Role::Source.name(), "password"];
    refuses(&mut world, Part::Source, configuration, &words).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

#[tokio::test]
async fn a_wrong_password_of_the_target_is_told() {
    let mut world = World::builder().table(users()).start().await;
    let mut source = world.start(Part::Source);
    source.ready(super::REFUSAL_WITHIN).await.expect("the source streams");
    let mut configuration = world.configuration.clone();
    configuration.environment("TRIBUTARY_TARGET__PASSWORD", Role::Application.password());
    refuses(&mut world, Part::Sink, configuration, &["target", Role::Target.name(), "password"]).await;
    source.stop().await.expect("the source ends");
    world.finish().await;
}

#[tokio::test]
async fn an_unreachable_source_is_told() {
    let mut world = World::builder().table(users()).start().await;
    let address = format!("127.0.0.1:{}", port::free());
    let mut configuration = world.configuration.clone();
    configuration.set("source.url", format!("postgresql://someone@{address}/shop?sslmode=disable"));
    configuration.set("source.start_timeout_seconds", 1);
    world.expect_log("WARN");
    refuses(&mut world, Part::Source, configuration, &["cannot reach", &address]).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}
