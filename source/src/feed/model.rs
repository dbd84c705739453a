//! A model of everything around the feed, in which whatever can break breaks: crashes at every step, zombies, answers that are
//! lost, servers that crash, fail over or come back from a copy of their disk, and somebody who moves the slot.
//!
//!     dice ─▶ world ─▶ clients, faults                                    ┌─▶ audit: the topics, folded, are the tables
//!               └─▶ processes ─▶ session (the real feed, state, history,  ├─▶ at each commit: dense, rising, nothing twice
//!                                windows, checks of a start) ─▶ broker ───┘
//!
//! The decisions are the product's own; only what stands around them is told again. A rule is taken out by a seam of the world,
//! and the model has to find what it was good for. A run that fails is shortened, and its story printed.
//!
//! `TRIBUTARY_MODEL_RUNS=1000000 cargo test -p source --lib every_rule` is a campaign.

mod audit;
mod broker;
mod client;
mod dice;
mod edges;
mod faults;
mod process;
mod reader;
mod relist;
mod server;
mod session;
mod windows;
mod wire;
mod world;

use dice::Dice;
use world::{Broken, Ended, Run, World};

/// A rule that can be taken out, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// `init_transactions` fences the predecessors.
    Fence,
    /// Only who has the slot fences.
    SlotDecides,
    /// The state is read again after the fence.
    ReadAfterFence,
    /// The state is read committed.
    CommittedState,
    /// After a commit with an unknown outcome everything begins again; nothing is sent again.
    BeginAgain,
    /// After an error seq and position come from Kafka, not from memory.
    StateFromKafka,
    /// A refused record fails its transaction.
    RefusalFails,
    /// The state stands in the transaction of its records.
    StateWithRecords,
    /// Records of equal position are in one transaction.
    EqualTogether,
    /// A server that the state does not descend to is refused before anything is fenced.
    SameServer,
    /// That is asked again behind the fence.
    StillSameServer,
    /// What the server has not written is not flushed.
    FlushedIsWritten,
    /// The slot's confirmed LSN is not beyond the state's flushed one.
    SlotNotAhead,
    /// The server's WAL reaches to what was published.
    WalNotBehind,
    /// What was published lies before the point where the new timeline began.
    SwitchPoint,
    /// On a new timeline the state's flushed LSN is cut to that point.
    CutToSwitch,
    /// On one timeline it never falls.
    FlushedNeverFalls,
    /// What is remembered and not confirmed comes again.
    RememberedComesAgain,
    /// Nothing that would have been acted on is new.
    NothingIsNew,
    /// The history knows commit times.
    CommitTime,
    /// It holds markers, too.
    ActedIsRemembered,
    /// What is skipped still counts as streamed.
    SkippedIsFed,
    /// Only what a committed state record says is confirmed.
    OnlyCommitted,
    /// Nothing is confirmed before it is visible.
    VisibleBeforeConfirmed,
    /// A keepalive inside a transaction proves nothing.
    KeepaliveOutside,
    /// A first start waits until all before the slot is visible.
    VisibleFirst,
    /// A transaction is recent from its Begin.
    RecentFromBegin,
    /// A moved row is read when its move is visible.
    ReselectWaits,
    /// After a start, what was read of moved rows is read again.
    MovedIsReadAgain,
    /// A chunk is read again if something streamed before was not visible to it.
    BeforeIsVisible,
    /// What the stream does to a chunk's rows is laid over them.
    TouchesApply,
    /// Whether it is depends on visibility, not on the place in the WAL.
    TouchesByVisibility,
    /// The table is locked before the snapshot.
    LockFirst,
    /// A chunk and the mark that it is done are one transaction.
    LoadWithChunk,
    /// Another list of tables is in force behind a message of our own.
    ListAtMessage,
    /// A chunk's marker cannot be taken for another's.
    RandomId,
    /// It is written behind the snapshot, so that its commit follows every commit that the chunk shows.
    MarkerLast,
    /// The chunk is handed over before.
    HandedOverFirst,
    /// A complete event of the stream takes the row out of the chunk.
    WholeRemoves,
    /// An event that leaves columns untouched is laid over the row, which stays.
    PatchesOverlay,
    /// A deleted row is in no chunk.
    DeleteRemoves,
    /// A row that left its key is not under it any more, and the one that came stands in the topic.
    MovesRemove,
    /// A truncated table has no rows but those that the stream brings.
    TruncateEmpties,
    /// Touches are laid over each other in the order of the stream.
    TouchesInOrder,
    /// Over budget a window is given up: without all touches its chunk cannot be made exact.
    OverBudgetGivesUp,
    /// A chunk of a shape that the stream has left is read again.
    OlderIsReadAgain,
    /// A chunk of a shape that the stream has not come to is taken.
    NewerIsTaken,
    /// The schema event of that shape stands in front of it.
    NewerIsAnnounced,
    /// Who began to write to a table before it was published has ended before it is loaded.
    StraddlersEnd,
    /// That is waited for in each life of the process.
    WaitsInEachLife,
    /// A row of a list of keys is answered by the image that the stream brought of it.
    ImagesAnswer,
    /// One of which the stream did not say all is read again.
    PartlyIsReadAgain,
    /// A key without a row is answered, too.
    AbsentIsAnswered,
}

/// How likely what is. Likelihoods of faults are relative to each other, others out of a thousand.
#[derive(Clone, Copy, Debug)]
struct Weather {
    /// How many steps there are before nothing breaks any more, and how many of them clients have for themselves.
    steps: usize,
    warm: usize,
    /// How many transactions there may be.
    transactions: usize,
    /// How often a commit record that could become visible does not.
    invisible_per_mille: usize,
    alters_per_mille: usize,
    truncates_per_mille: usize,
    /// How soon a transaction commits, and how many messages it writes that only ask for a state record.
    commits_per_mille: usize,
    beats_per_mille: usize,
    /// How often somebody asks for rows by their keys.
    asks_per_mille: usize,
    /// How many of ten changes move a row where one can be moved.
    moves: usize,
    /// How many of a hundred steps are faults, and of which kinds.
    strikes: usize,
    kills: usize,
    naps: usize,
    cuts: usize,
    crashes: usize,
    failovers: usize,
    restores: usize,
    thefts: usize,
    /// How often another list of tables is wanted.
    lists: usize,
    /// Commits of which the source learns nothing, and records that the broker refuses.
    lost_answers: usize,
    refusals: usize,
    /// Empty transactions are streamed, as before PostgreSQL 15.
    empties: bool,
    /// The tables are copied.
    loads: bool,
    /// How many chunks may be open at a time, and how many bytes of touches are kept for them.
    readers: usize,
    touch_bytes: usize,
    /// The second table is published later than the first.
    latecomer: bool,
}

impl Weather {
    /// A process that dies now and then.
    const FAIR: Weather = Weather {
        steps: 220,
        warm: 0,
        transactions: 9,
        invisible_per_mille: 0,
        alters_per_mille: 0,
        truncates_per_mille: 0,
        commits_per_mille: 350,
        beats_per_mille: 30,
        asks_per_mille: 0,
        moves: 3,
        strikes: 4,
        kills: 20,
        naps: 10,
        cuts: 10,
        crashes: 0,
        failovers: 0,
        restores: 0,
        thefts: 0,
        lists: 0,
        lost_answers: 0,
        refusals: 0,
        empties: false,
        loads: false,
        readers: 1,
        touch_bytes: 1 << 20,
        latecomer: false,
    };

    /// Half of all runs are about loads alone.
    fn draw(dice: &mut Dice) -> Weather {
        if dice.below(2) == 0 { Weather::any(dice) } else { Weather::of_loads(dice) }
    }

    /// Anything.
    fn any(dice: &mut Dice) -> Weather {
        let mut some = |often: usize, much: usize| if dice.below(3) == 0 { often } else { much };
        Weather {
            steps: some(300, 500),
            warm: some(0, 30),
            transactions: some(14, 24),
            invisible_per_mille: some(0, 800),
            alters_per_mille: some(0, 80),
            truncates_per_mille: some(0, 60),
            commits_per_mille: some(700, 350),
            beats_per_mille: some(300, 30),
            asks_per_mille: some(100, 0),
            moves: some(6, 3),
            strikes: some(8, 4),
            kills: some(20, 2),
            naps: some(10, 2),
            cuts: some(10, 2),
            crashes: some(0, 5),
            failovers: some(0, 10),
            restores: some(0, 10),
            thefts: some(0, 1),
            lists: some(0, 10),
            lost_answers: some(0, 150),
            refusals: some(0, 10),
            empties: some(0, 1) == 1,
            loads: some(0, 1) == 1,
            readers: some(1, 3),
            touch_bytes: some(300, 1 << 20),
            latecomer: some(1, 0) == 1,
        }
        .without_what_needs_loads()
    }

    /// Tables are copied, and hardly anything else keeps the copies from their markers.
    fn of_loads(dice: &mut Dice) -> Weather {
        let mut some = |one: usize, other: usize| if dice.below(2) == 0 { one } else { other };
        Weather {
            steps: some(260, 400),
            transactions: some(12, 24),
            invisible_per_mille: some(0, 850),
            alters_per_mille: some(0, 150),
            truncates_per_mille: some(0, 150),
            commits_per_mille: some(600, 250),
            asks_per_mille: some(0, 100),
            moves: some(2, 5),
            readers: some(2, 3),
            touch_bytes: some(1 << 20, 300),
            latecomer: some(0, 1) == 1,
            lost_answers: some(0, 100),
            ..LOADS
        }
    }

    /// Whether there is anything to read beside the stream.
    fn reads(self) -> bool {
        self.loads || self.asks_per_mille > 0
    }

    /// A table that comes back is loaded, or nobody could say what its topic holds.
    fn without_what_needs_loads(self) -> Weather {
        Weather { lists: if self.loads { self.lists } else { 0 }, latecomer: self.latecomer && self.loads, ..self }
    }
}

fn run(seed: u64, weather: Option<Weather>, out: Option<Rule>) -> Run {
    let mut dice = Dice::of_seed(seed);
    let weather = weather.unwrap_or_else(|| Weather::draw(&mut dice));
    World::run(dice, weather, out, false)
}

/// The shortest story that was found of a run that fails.
fn story(run: &Run, weather: Option<Weather>, out: Option<Rule>) -> String {
    let again = |tape: &[u32], traced| {
        let mut dice = Dice::replay(tape);
        let weather = weather.unwrap_or_else(|| Weather::draw(&mut dice));
        World::run(dice, weather, out, traced)
    };
    let fails = |tape: &[u32]| {
        let other = again(tape, false);
        (other.result == run.result).then_some(other.tape)
    };
    let shortest = again(&dice::shrink(run.tape.clone(), fails), true);
    format!("{:?}\n  {}", shortest.result, shortest.trace.join("\n  "))
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn every_rule_in_its_place_keeps_every_promise() {
    let (from, runs) = (number("TRIBUTARY_MODEL_FROM", 0), number("TRIBUTARY_MODEL_RUNS", 300));
    let mut ended = std::collections::BTreeMap::<String, u64>::new();
    for seed in from..from + runs {
        let run = run(seed, None, None);
        match &run.result {
            Ok(Ended::Equal) => *ended.entry("equal".into()).or_default() += 1,
            Ok(Ended::Stopped(why)) => *ended.entry(format!("stopped: {why}")).or_default() += 1,
            Err(_) => panic!("seed {seed}: {}", story(&run, None, None)),
        }
    }
    println!("{runs} runs from seed {from}: {ended:?}");
}

/// Without this rule a promise breaks, and with it the very same run keeps them all. What is rare is looked for from a seed on
/// that had it when this was written; after any change of the model or the feed it may be found later.
fn needed(out: Rule, weather: Weather, from: u64) {
    let (from, tries) = (number("TRIBUTARY_MODEL_FROM", from), number("TRIBUTARY_MODEL_TRIES", 20_000));
    for seed in from..from + tries {
        let without = run(seed, Some(weather), Some(out));
        let Err(Broken(what)) = &without.result else { continue };
        println!("without {out:?}, seed {seed}: {what}");
        if number("TRIBUTARY_MODEL_STORIES", 0) > 0 {
            println!("{}", story(&without, Some(weather), Some(out)));
        }
        let with = run(seed, Some(weather), None);
        assert!(with.result.is_ok(), "{}", story(&with, Some(weather), None));
        return;
    }
    panic!("{tries} runs without {out:?} broke no promise");
}

macro_rules! rules {
    ($($name:ident: $rule:ident, $weather:expr $(, from $seed:literal)?;)*) => {
        $(
            #[test]
            fn $name() {
                needed(Rule::$rule, $weather, 0 $(+ $seed)?);
            }
        )*
    };
}

const ZOMBIES: Weather = Weather { naps: 40, ..Weather::FAIR };
const LOST_ANSWERS: Weather = Weather { lost_answers: 200, ..Weather::FAIR };
const FAILOVERS: Weather = Weather { failovers: 20, ..Weather::FAIR };
const RESTORES: Weather = Weather { restores: 20, ..Weather::FAIR };
/// Short transactions stand easily at the place of others that were lost, and beats move what is flushed ahead of what is published.
const SHORT: Weather = Weather {
    commits_per_mille: 800,
    beats_per_mille: 300,
    transactions: 20,
    strikes: 8,
    kills: 6,
    naps: 2,
    cuts: 4,
    ..RESTORES
};
/// Rows move, and what was seen of them is lost by a failover soon after.
const MOVES: Weather = Weather {
    commits_per_mille: 700,
    moves: 7,
    strikes: 12,
    kills: 1,
    naps: 0,
    cuts: 1,
    transactions: 30,
    ..FAILOVERS
};
const SLOW: Weather = Weather { invisible_per_mille: 950, ..Weather::FAIR };
/// A chunk takes many steps: hardly anything may break meanwhile, or none would come to its marker.
const LOADS: Weather = Weather { loads: true, steps: 260, kills: 2, naps: 1, cuts: 1, ..Weather::FAIR };
const SLOW_LOADS: Weather = Weather { invisible_per_mille: 900, lists: 20, ..LOADS };
/// Two chunks are open most of the time, over rows that are written all the while.
const READERS: Weather = Weather { readers: 3, transactions: 20, commits_per_mille: 600, ..LOADS };
const ALTERS: Weather = Weather { alters_per_mille: 150, ..READERS };
/// Rows are asked for by their keys while they are written to, one chunk at a time.
const ASKS: Weather = Weather { asks_per_mille: 200, loads: false, readers: 1, ..READERS };
/// A table joins the list while it is written to.
const LATECOMERS: Weather = Weather { latecomer: true, steps: 400, commits_per_mille: 150, ..READERS };

rules! {
    the_fence_is_needed: Fence, Weather { lost_answers: 200, ..ZOMBIES };
    that_the_slot_decides_is_needed: SlotDecides, ZOMBIES;
    reading_the_state_again_is_needed: ReadAfterFence, ZOMBIES;
    reading_it_committed_is_needed: CommittedState, LOST_ANSWERS;
    beginning_again_is_needed: BeginAgain, LOST_ANSWERS;
    a_state_from_kafka_is_needed: StateFromKafka, LOST_ANSWERS;
    failing_with_a_refused_record_is_needed: RefusalFails, Weather { refusals: 20, ..Weather::FAIR };
    a_state_beside_its_records_is_needed: StateWithRecords, LOST_ANSWERS;
    records_of_equal_position_together_are_needed: EqualTogether, Weather::FAIR;
    refusing_another_server_is_needed: SameServer, FAILOVERS;
    asking_that_again_behind_the_fence_is_needed: StillSameServer, FAILOVERS;
    that_only_what_is_written_is_flushed_is_needed: FlushedIsWritten, SHORT, from 690;
    the_check_of_the_slot_is_needed: SlotNotAhead, Weather { thefts: 20, ..Weather::FAIR };
    the_check_of_the_wal_is_needed: WalNotBehind, RESTORES;
    the_switch_point_is_needed: SwitchPoint, FAILOVERS;
    cutting_to_the_switch_point_is_needed: CutToSwitch, FAILOVERS;
    that_flushed_never_falls_is_needed: FlushedNeverFalls, SLOW;
    that_what_is_remembered_comes_again_is_needed: RememberedComesAgain, RESTORES;
    that_nothing_is_new_is_needed: NothingIsNew, Weather { strikes: 6, kills: 3, naps: 1, cuts: 1, restores: 30, commits_per_mille: 250, ..RESTORES }, from 400;
    the_commit_time_is_needed: CommitTime, SHORT, from 880;
    remembering_markers_is_needed: ActedIsRemembered, Weather { restores: 5, ..LOADS }, from 1170;
    feeding_what_is_skipped_is_needed: SkippedIsFed, SLOW;
    confirming_only_what_is_committed_is_needed: OnlyCommitted, Weather::FAIR;
    confirming_only_what_is_visible_is_needed: VisibleBeforeConfirmed, SLOW;
    keepalives_outside_of_transactions_are_needed: KeepaliveOutside, Weather::FAIR;
    waiting_before_the_first_state_is_needed: VisibleFirst, Weather { warm: 30, ..SLOW_LOADS };
    that_a_transaction_is_recent_from_its_begin_is_needed: RecentFromBegin, SLOW_LOADS, from 850;
    waiting_for_a_moved_row_is_needed: ReselectWaits, SLOW;
    reading_moved_rows_again_is_needed: MovedIsReadAgain, MOVES, from 11600;
    reading_again_what_missed_a_transaction_is_needed: BeforeIsVisible, SLOW_LOADS;
    touches_are_needed: TouchesApply, LOADS;
    judging_touches_by_visibility_is_needed: TouchesByVisibility, SLOW_LOADS;
    the_lock_before_the_snapshot_is_needed: LockFirst, Weather { alters_per_mille: 200, ..LOADS };
    a_chunk_with_its_mark_is_needed: LoadWithChunk, Weather { lost_answers: 200, ..LOADS };
    the_message_before_another_list_is_needed: ListAtMessage, Weather { lists: 30, ..LOADS };
    random_ids_of_chunks_are_needed: RandomId, SLOW_LOADS;
    the_marker_behind_the_snapshot_is_needed: MarkerLast, READERS;
    handing_over_before_the_marker_is_needed: HandedOverFirst, READERS;
    that_a_complete_event_removes_the_row_is_needed: WholeRemoves, READERS;
    that_a_partial_event_is_laid_over_it_is_needed: PatchesOverlay, READERS;
    that_a_delete_removes_it_is_needed: DeleteRemoves, READERS;
    that_a_moved_row_is_removed_is_needed: MovesRemove, READERS;
    that_a_truncate_empties_the_chunk_is_needed: TruncateEmpties, Weather { truncates_per_mille: 200, ..READERS };
    the_order_of_touches_is_needed: TouchesInOrder, READERS;
    giving_up_over_budget_is_needed: OverBudgetGivesUp, Weather { touch_bytes: 200, ..READERS };
    reading_an_older_shape_again_is_needed: OlderIsReadAgain, ALTERS;
    taking_a_newer_shape_is_needed: NewerIsTaken, ALTERS;
    announcing_a_newer_shape_is_needed: NewerIsAnnounced, ALTERS;
    waiting_for_straddling_transactions_is_needed: StraddlersEnd, LATECOMERS;
    waiting_for_them_in_each_life_is_needed: WaitsInEachLife, LATECOMERS;
    that_an_image_answers_is_needed: ImagesAnswer, ASKS;
    reading_again_what_is_partly_known_is_needed: PartlyIsReadAgain, ASKS;
    answering_for_rows_that_are_gone_is_needed: AbsentIsAnswered, ASKS;
    an_answer_with_its_mark_is_needed: LoadWithChunk, Weather { lost_answers: 200, ..ASKS };
    touches_of_lists_are_needed: TouchesApply, ASKS;
    judging_touches_of_lists_by_visibility_is_needed: TouchesByVisibility, Weather { invisible_per_mille: 900, ..ASKS };
}
