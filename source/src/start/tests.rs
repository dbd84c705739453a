use schemas::state::Sent;
use service::config::Document;

use super::*;
use crate::keeper::Slot;
use crate::state::tests::state;

fn config(more: &str) -> Config {
    let text = format!(
        "[source]\nurl = 'postgresql://app@one:1,two:2/shop'\nslot = 's'\npublication = 'p'\ntables = ['public.users']\n{more}"
    );
    let document = Document::parse(&text, std::iter::empty()).expect("valid TOML");
    let config = Config::read(&mut document.root().section("source"), "shop");
    document.finish().expect("it is sound");
    config
}

fn system(timeline: u32) -> System {
    System { system_id: "1".into(), timeline, xlogpos: Lsn(900), database: "shop".into() }
}

/// Timeline 2 began at 500, timeline 3 at 700.
const SWITCHES: [Switch; 2] = [Switch { timeline: 1, at: Lsn(500) }, Switch { timeline: 2, at: Lsn(700) }];

/// A state on a timeline that has published up to a commit.
fn published(timeline: u32, commit: u64) -> State {
    let mut state = state();
    state.stream.timeline = timeline;
    state.stream.flushed = Lsn(commit + 10);
    for commit in [commit - 20, commit - 10, commit] {
        let position = Position { commit: Lsn(commit), change: Lsn(commit - 5), n: 1 };
        state.acted(position, Sent(Lsn(commit), commit as u32, 0));
    }
    state
}

#[test]
fn another_server_database_or_slot_is_refused_before_anything_is_fenced() {
    let state = published(1, 400);
    check_identity(&config(""), "shop", &state, &system(1), &[]).expect("it is the one");
    let other = System { system_id: "2".into(), ..system(1) };
    let refused = check_identity(&config(""), "shop", &state, &other, &[]).expect_err("another server");
    assert!(matches!(refused, Error::OtherSource { .. }), "{refused}");
    let slot = Config { slot: "t".into(), ..config("") };
    let refused = check_identity(&slot, "shop", &state, &system(1), &[]).expect_err("another slot");
    assert!(matches!(refused, Error::OtherSource { .. }), "{refused}");
}

#[test]
fn a_promoted_standby_is_the_same_server_and_an_old_primary_is_not() {
    let config = config("");
    check_identity(&config, "shop", &published(1, 400), &system(2), &SWITCHES[..1]).expect("it came out of timeline 1");
    check_identity(&config, "shop", &published(1, 400), &system(3), &SWITCHES).expect("it came out of it by way of 2");
    for (recorded, found, switches) in [(2, 1, &[][..]), (2, 3, &SWITCHES[..1])] {
        let refused = check_identity(&config, "shop", &published(recorded, 400), &system(found), switches);
        let refused = refused.expect_err("an old primary, and a sibling");
        assert!(matches!(refused, Error::OtherTimeline { .. }), "{refused}");
        assert_eq!(refused.severity(), crate::Severity::Fatal);
    }
}

#[test]
fn what_the_new_primary_never_had_is_listed() {
    let config = config("");
    let mut state = published(1, 505);
    let refused = check_server(&config, &mut state, &system(2), &SWITCHES[..1], Lsn(300), Lsn(900));
    let refused = refused.expect_err("the commits at 505 and, as the switch is its end, none before");
    assert!(
        matches!(&refused, Error::Diverged { lost, at: Lsn(500), .. } if *lost == [Sent(Lsn(505), 505, 0)]),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("commit 0/1F9, txId 505"), "{refused}");
    // A commit record that begins where the timeline ended stands behind its end.
    let mut state = published(1, 500);
    check_server(&config, &mut state, &system(2), &SWITCHES[..1], Lsn(300), Lsn(900)).expect_err("it begins there");
}

#[test]
fn a_promotion_beyond_what_was_published_is_followed() {
    let mut state = published(1, 495);
    check_server(&config(""), &mut state, &system(3), &SWITCHES, Lsn(300), Lsn(900)).expect("nothing is missing");
    assert_eq!((state.stream.timeline, state.stream.flushed), (3, Lsn(500)), "flushed is cut where timeline 1 ended");
}

#[test]
fn a_server_that_another_instance_has_left_behind_is_begun_anew() {
    let again = check_server(&config(""), &mut published(2, 400), &system(1), &[], Lsn(300), Lsn(900));
    assert!(matches!(again, Err(Error::Again(_))), "{again:?}");
}

#[test]
fn a_slot_ahead_and_a_server_behind_are_refused() {
    let config = config("");
    let ahead = check_server(&config, &mut published(1, 400), &system(1), &[], Lsn(411), Lsn(900));
    assert!(matches!(ahead, Err(Error::SlotAhead { .. })), "{ahead:?}");
    let behind = check_server(&config, &mut published(1, 400), &system(1), &[], Lsn(300), Lsn(399));
    assert!(matches!(behind, Err(Error::Behind { .. })), "{behind:?}");
}

#[test]
fn a_slot_must_have_come_along_whole() {
    let slot = Slot { confirmed_lsn: Some(Lsn(300)), is_failover: true, is_synced: true, ..Slot::default() };
    let state = published(1, 400);
    let trusting = config("failover = true");
    let check = |config: &Config, slot: Option<&Slot>, timeline| {
        let survey = Survey { slot: slot.cloned(), synchronized: "standby".into(), ..Survey::default() };
        check_slot(config, &survey, &state, timeline)
    };
    check(&trusting, Some(&slot), 1).expect("nothing happened");
    check(&trusting, Some(&slot), 2).expect("it came along");
    let gone = check(&trusting, None, 1).expect_err("it was dropped");
    assert!(matches!(gone, Error::SlotGone { .. }), "{gone}");
    let left = check(&trusting, None, 2).expect_err("it did not come along");
    assert!(matches!(left, Error::SlotLeftBehind { timeline: 2, .. }), "{left}");

    let by_hand = Slot { is_synced: false, ..slot.clone() };
    check(&trusting, Some(&by_hand), 1).expect("the server's own");
    check(&config(""), Some(&by_hand), 2).expect("who kept it is not ours to say; its history is compared");
    check(&trusting, Some(&by_hand), 2).expect_err("made by hand");
    let temporary = Slot { is_temporary: true, ..slot };
    check(&trusting, Some(&temporary), 2).expect_err("not ready");
}
