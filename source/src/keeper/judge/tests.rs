use super::*;

const MIB: u64 = 1 << 20;
const END: Lsn = Lsn(5000 * MIB);

fn alarms() -> Alarms {
    Alarms { retained_bytes: [100 * MIB, 1000 * MIB], behind_seconds: [60, 600], room_percent: [50, 20] }
}

/// A look at a slot in good order, which is read from and has no limit.
fn look(change: impl FnOnce(&mut Look, &mut Slot)) -> Look {
    let mut slot = Slot {
        plugin: Some("pgoutput".into()),
        database: Some("shop".into()),
        active_pid: Some(7),
        wal_status: Some("reserved".into()),
        restart_lsn: Some(Lsn(END.0 - MIB)),
        confirmed_lsn: Some(Lsn(END.0 - 1000)),
        ..Slot::default()
    };
    let mut look =
        Look { name: "s".into(), at_ms: 1_000_000, database: "shop".into(), server_lsn: END, ..Look::default() };
    change(&mut look, &mut slot);
    look.slot = Some(slot);
    look
}

fn check(look: &Look, age_seconds: Option<u64>, level: Level, words: &[&str]) {
    let verdict = judge(look, &Known { age_seconds, is_expected: true }, &alarms());
    let say = |reason: &Reason| format!("{}: {}\n", reason.found, reason.remedy);
    let text: String = verdict.reasons.iter().map(say).collect();
    assert_eq!(verdict.level, level, "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    assert_eq!(level == Level::Ok, text.is_empty(), "{text}");
}

#[test]
fn a_slot_in_good_order_is_no_news() {
    check(&look(|_, _| ()), Some(3), Level::Ok, &[]);
    check(&look(|_, slot| slot.active_pid = None), None, Level::Ok, &[]);
    check(&look(|_, slot| slot.wal_status = Some("extended".into())), None, Level::Ok, &[]);
}

#[test]
fn a_slot_that_is_gone_is_a_loss_only_where_something_was_published_from_it() {
    let gone = Look { slot: None, ..look(|_, _| ()) };
    check(&gone, None, Level::Critical, &["s is gone", "new prefix"]);
    assert_eq!(judge(&gone, &Known::default(), &alarms()), Verdict::default());
}

#[test]
fn a_slot_of_another_is_told_by_what_makes_it_foreign() {
    let foreign = |change: fn(&mut Slot)| look(|_, slot| change(slot));
    check(&foreign(|slot| slot.is_physical = true), None, Level::Critical, &["physical", "source.slot"]);
    check(&foreign(|slot| slot.is_temporary = true), None, Level::Critical, &["temporary", "process 7"]);
    check(&foreign(|slot| slot.plugin = Some("test_decoding".into())), None, Level::Critical, &["test_decoding"]);
    check(&foreign(|slot| slot.database = Some("other".into())), None, Level::Critical, &["database other"]);
}

#[test]
fn a_lost_slot_is_told_by_its_reason_and_with_what_would_have_kept_it() {
    let lost = |reason: &str| look(|_, slot| slot.invalidation_reason = Some(reason.into()));
    check(&lost("wal_removed"), None, Level::Critical, &["max_slot_wal_keep_size", "slot drop", "new prefix"]);
    check(&lost("idle_timeout"), None, Level::Critical, &["raise idle_replication_slot_timeout"]);
    check(&lost("rows_removed"), None, Level::Critical, &["hot_standby_feedback"]);
    check(&lost("wal_level_insufficient"), None, Level::Critical, &["wal_level = logical"]);
    check(&lost("of_the_future"), None, Level::Critical, &["invalidated"]);
    let before_17 = look(|_, slot| slot.wal_status = Some("lost".into()));
    check(&before_17, None, Level::Critical, &["max_slot_wal_keep_size"]);
    check(&look(|_, slot| slot.is_conflicting = true), None, Level::Critical, &["conflicts with recovery"]);
}

#[test]
fn room_bytes_and_seconds_have_their_levels() {
    let room = |percent: i64| {
        look(|look, slot| {
            look.keep_bytes = Some(100 * MIB);
            slot.safe_wal_bytes = Some(percent * (MIB as i64));
        })
    };
    check(&room(51), None, Level::Ok, &[]);
    check(&room(50), None, Level::Warning, &["50 % of max_slot_wal_keep_size"]);
    check(&room(20), None, Level::Critical, &["20 %", "reload"]);
    check(&room(-5), None, Level::Critical, &["0 %"]);
    check(&look(|_, slot| slot.wal_status = Some("unreserved".into())), None, Level::Critical, &["next checkpoint"]);

    let kept = |mib: u64| look(|look, slot| slot.restart_lsn = Some(Lsn(look.server_lsn.0 - mib * MIB)));
    check(&kept(99), None, Level::Ok, &[]);
    check(&kept(100), None, Level::Warning, &["100 MiB"]);
    check(&kept(1000), None, Level::Critical, &["1000 MiB"]);

    check(&look(|_, _| ()), Some(59), Level::Ok, &[]);
    check(&look(|_, _| ()), Some(60), Level::Warning, &["60 s behind"]);
    check(&kept(100), Some(600), Level::Critical, &["600 s behind", "100 MiB"]);
}

#[test]
fn a_slot_that_nobody_reads_runs_out_of_its_idle_time() {
    let idle = |pid: Option<i32>, seconds: i64| {
        look(|look, slot| {
            look.idle_timeout = Some(Duration::from_secs(100));
            slot.active_pid = pid;
            slot.inactive_since_ms = Some(look.at_ms - seconds * 1000);
        })
    };
    check(&idle(None, 49), None, Level::Ok, &[]);
    check(&idle(None, 50), None, Level::Warning, &["50 s", "idle_replication_slot_timeout"]);
    check(&idle(None, 500), None, Level::Critical, &["in 0 s"]);
    check(&idle(Some(7), 99), None, Level::Ok, &[]);
}

#[test]
fn each_change_of_level_is_told_once_and_calm_only_when_it_lasts() {
    let mut alarm = Alarm::default();
    let mut hear = |level, second: i64| alarm.hear(level, second * 1000);
    assert_eq!(hear(Level::Ok, 0), None);
    assert_eq!(hear(Level::Warning, 5), Some(Level::Warning));
    assert_eq!(hear(Level::Warning, 10), None);
    assert_eq!(hear(Level::Ok, 15), None, "at the edge of a threshold");
    assert_eq!(hear(Level::Warning, 20), None);
    assert_eq!(hear(Level::Critical, 25), Some(Level::Critical));
    assert_eq!(hear(Level::Ok, 30), None);
    assert_eq!(hear(Level::Ok, 89), None);
    assert_eq!(hear(Level::Ok, 90), Some(Level::Ok));
    assert_eq!(hear(Level::Ok, 95), None);
}

#[test]
fn the_age_of_a_place_is_that_of_the_newest_end_of_wal_below_it() {
    let mut ages = Ages::default();
    assert_eq!(ages.seconds(Lsn(5), 9_000), None, "nothing is known yet");
    ages.note(Lsn(10), 1_000);
    ages.note(Lsn(30), 3_000);
    ages.note(Lsn(20), 2_000);
    assert_eq!(ages.seconds(Lsn(9), 9_000), None);
    assert_eq!(ages.seconds(Lsn(10), 9_000), Some(8));
    assert_eq!(ages.seconds(Lsn(29), 9_000), Some(7));
    assert_eq!(ages.seconds(Lsn(99), 9_000), Some(6));
    ages.note(Lsn(30), 8_500);
    assert_eq!(ages.seconds(Lsn(30), 9_000), Some(0), "the WAL did not grow meanwhile");
}

#[test]
fn what_is_remembered_of_the_past_is_bounded_and_reaches_back_all_the_same() {
    let mut ages = Ages::default();
    for n in 0..100_000 {
        ages.note(Lsn(n), (n as i64) * 1000);
    }
    assert!(ages.0.len() <= AGES_MAX);
    assert_eq!(ages.seconds(Lsn(99_999), 100_000_000), Some(1));
    assert_eq!(ages.seconds(Lsn(0), 100_000_000), Some(100_000));
}

#[test]
fn a_slot_that_nobody_reads_lasts_as_long_as_its_room_at_the_measured_rate() {
    let rate = Rate { bytes: 10 * MIB, over: Duration::from_secs(10), basis: Basis::TwoLooks };
    let still = Rate { bytes: 0, ..rate };
    let limited = look(|look, slot| {
        slot.active_pid = None;
        look.keep_bytes = Some(1000 * MIB);
        slot.safe_wal_bytes = Some(600 * MIB as i64);
    });
    assert_eq!(outlook(&limited, &rate, &alarms()), Some(Outlook::Lost(Some(Duration::from_secs(600)))));
    assert_eq!(outlook(&limited, &still, &alarms()), Some(Outlook::Lost(None)));
    let unlimited = look(|_, slot| slot.active_pid = None);
    assert_eq!(outlook(&unlimited, &rate, &alarms()), Some(Outlook::Disk(Some(Duration::from_secs(999)))));
    assert_eq!(outlook(&look(|_, _| ()), &rate, &alarms()), None, "somebody reads from it");
    let lost = look(|_, slot| (slot.active_pid, slot.wal_status) = (None, Some("lost".into())));
    assert_eq!(outlook(&lost, &rate, &alarms()), None);
}
