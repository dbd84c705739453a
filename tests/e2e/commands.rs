//! The commands that an operator asks: verify, status, doctor, init, help.

use harness::World;
use harness::process::{Output, Part};
use harness::table::Table;

fn users() -> Table {
    Table::new("public.users", &["id"], "id bigint PRIMARY KEY, name text")
}

async fn copied() -> (World, harness::process::Tributary) {
    let mut world = World::builder().table(users()).start().await;
    world.in_source("INSERT INTO users SELECT i, 'user ' || i FROM generate_series(1, 100) i").await;
    let run = world.start(Part::Run);
    world.until_equal().await;
    (world, run)
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|cause| panic!("{cause}: {output:?}"))
}

/// Exit code 0 equal, 1 different, 2 could not tell.
#[tokio::test(flavor = "multi_thread")]
async fn verify_tells_equal_from_different_from_unknown() {
    let (mut world, mut run) = copied().await;
    let equal = world.command(&["verify"]).await;
    assert_eq!(equal.code, Some(0), "{equal:?}");
    assert!(equal.stdout.contains("public.users") && equal.stdout.contains("100"), "{equal:?}");

    world.in_target("DELETE FROM users WHERE id IN (7, 8)").await;
    let different = world.command(&["verify"]).await;
    assert_eq!(different.code, Some(1), "{different:?}");
    let different = world.command(&["verify", "--json"]).await;
    assert_eq!(different.code, Some(1), "{different:?}");
    assert!(json(&different).to_string().contains("98"), "{different:?}");

    world
        .configuration
        .set("target.url", format!("postgresql://someone@127.0.0.1:{}/shop?sslmode=disable", harness::port::free()));
    let unknown = world.command(&["verify"]).await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.stderr.contains("cannot reach"), "{unknown:?}");
    run.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_tables_slot_and_every_partition_of_a_group() {
    let (world, mut run) = copied().await;
    let human = world.command(&["status"]).await;
    assert_eq!(human.code, Some(0), "{human:?}");
    for word in ["public.users", &world.slot(), "rdb", &run.id().to_string()] {
        assert!(human.stdout.contains(word), "no {word:?} in {human:?}");
    }
    let machine = world.command(&["status", "--json"]).await;
    assert_eq!(machine.code, Some(0), "{machine:?}");
    assert!(json(&machine).to_string().contains("public.users"), "{machine:?}");
    run.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_is_content_with_a_sound_world_and_names_the_remedy_in_a_broken_one() {
    let (mut world, mut run) = copied().await;
    let sound = world.command(&["doctor"]).await;
    assert_eq!(sound.code, Some(0), "{sound:?}");
    run.stop().await.expect("it ends");
    world.in_target("DROP TABLE users").await;
    world.configuration.set("source.tables", vec!["public.users", "public.nowhere"]);
    let broken = world.command(&["doctor"]).await;
    assert!(broken.code.is_some_and(|code| code != 0), "{broken:?}");
    assert!(broken.stdout.contains("public.nowhere"), "{broken:?}");
    world.finish().await;
}

#[tokio::test]
async fn help_teaches_and_init_writes_a_configuration_that_is_understood() {
    let world = World::builder().table(users()).start().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let binary = harness::place::tributary().expect("the product is built");
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(&binary).args(arguments).current_dir(folder.path()).output();
        let output = output.expect("the product starts");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let help = run(&["--help"]);
    for command in ["source", "sink", "run", "verify", "dlq", "status", "doctor", "init"] {
        assert!(help.contains(command), "the help does not speak of {command}:\n{help}");
    }
    run(&["init"]);
    let written = std::fs::read_to_string(folder.path().join("tributary.toml")).expect("init writes tributary.toml");
    for section in ["prefix", "[kafka]", "[source]", "[target]", "[groups."] {
        assert!(written.contains(section), "the sample lacks {section}:\n{written}");
    }
    world.finish().await;
}
