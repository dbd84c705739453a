//! Whether the running source has gone over to the list in its file, or has read it and goes on by the one before.
//!
//!     message ─▶ met ─▶ its next record: is it on the way to another list? ─┬─ yes: wait
//!                                                                           └─ no ─▶ the record behind that: has not taken it
//!
//! Exact, without any clock. A session that goes over has another session on its server from before its first record until the
//! message of the list stands in the stream; so a record of a session that has read the file, no such session behind it, and a
//! record behind that, prove that there is no such message. (A session that fails on its way and begins again at that very moment
//! may be told of too early; the same command again says what became of it.)

use std::time::Duration;

use schemas::Lsn;
use source::ask;
use source::command::{Command, Wish};

use super::Report;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::reader::Reader;
use crate::state;

/// How often it is asked whether the source has gone over.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// After so many times a person is told what it may wait for.
const TELL_AFTER: u32 = 15;
/// After so many times without a reader of the slot none is waited for.
const ABSENT_MAX: u32 = 10;

/// How the list in the file stands to the one that is published.
pub(super) struct Means<'a> {
    pub(super) configuration: &'a Configuration,
    pub(super) source: &'a source::Config,
    pub(super) client: &'a postgres::Client,
    /// Whether to wait until it has gone over.
    pub(super) waits: bool,
    /// Whether the file was changed just now.
    pub(super) is_changed: bool,
}

impl Means<'_> {
    /// Tells the running source to read its file again, and waits until its state is as `wanted`. Whether it is.
    pub(super) async fn follow(
        &self,
        wanted: impl Fn(&source::State) -> bool,
        report: &mut Report,
    ) -> Result<bool, Failure> {
        let Means { configuration, source, client, .. } = self;
        // Where the file was changed, the state may be on its way to what stood there before, however it looks.
        if !self.is_changed && state::read(configuration).await?.as_ref().is_some_and(&wanted) {
            return Ok(true);
        }
        let command = Command { id: ask::new_id(), wish: Wish::Configuration };
        let at = ask::order(client, &source.slot, &command, None).await?.at;
        let (mut course, mut reader) = (Course::Meeting { at }, Reader::of(client, &source.slot, ABSENT_MAX));
        for asked in 0_u32.. {
            if reader.is_gone().await? {
                report.notes.push(format!(
                    "nobody reads from the slot {}: the source goes over to the list when it is started with this file",
                    source.slot
                ));
                return Ok(false);
            }
            if !self.waits {
                break;
            }
            if let Some(now) = state::read(configuration).await? {
                let is_going_over = ask::is_going_over(client).await?;
                match course.step(now.stream.flushed, wanted(&now), is_going_over) {
                    Step::Stays => {}
                    Step::Moves => course.begin_at(ask::mark(client).await?),
                    Step::Followed => {
                        report.steps.push("the running source has gone over to the list".to_owned());
                        return Ok(true);
                    }
                    Step::Refused => {
                        report.remains.push(
                            "the running source has read its file again, and goes on by the list before: its log says why. Mend that, then the same command again; it would take the list of the file at its next start too".to_owned(),
                        );
                        return Ok(false);
                    }
                }
            }
            if asked == TELL_AFTER {
                eprintln!("{}", course.words());
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
        report.notes.push("the running source was told to read its file again".to_owned());
        Ok(false)
    }
}

/// How far the source is with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// It comes to the message.
    Meeting { at: Lsn },
    /// It has met it when the WAL ended at `since`.
    Met { since: Lsn },
    /// It was not on the way to another list when the WAL ended at `since`.
    Idle { since: Lsn },
}

/// What a look has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Stays,
    /// To the next part of its course, which begins where the WAL ends now.
    Moves,
    Followed,
    Refused,
}

impl Course {
    /// By a state, and what was seen on the server after it was read.
    fn step(&mut self, flushed: Lsn, is_wanted: bool, is_going_over: bool) -> Step {
        match *self {
            // What is there before it has read the file says nothing: it may be on its way to the file before.
            Course::Meeting { at } if flushed < at => Step::Stays,
            _ if is_wanted => Step::Followed,
            Course::Meeting { .. } => Step::Moves,
            Course::Met { since } if flushed > since && !is_going_over => Step::Moves,
            Course::Met { .. } => Step::Stays,
            Course::Idle { since } if is_going_over => {
                *self = Course::Met { since };
                Step::Stays
            }
            Course::Idle { since } if flushed > since => Step::Refused,
            Course::Idle { .. } => Step::Stays,
        }
    }

    fn begin_at(&mut self, since: Lsn) {
        *self = match self {
            Course::Meeting { .. } => Course::Met { since },
            Course::Met { .. } | Course::Idle { .. } => Course::Idle { since },
        };
    }

    fn words(self) -> &'static str {
        match self {
            Course::Meeting { .. } => "waiting for the source to come to the message in its stream",
            _ => {
                "waiting: the source has read its configuration again. Its log says whether its own file holds the change, and which transactions it waits for"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks one after the other: flushed, as wanted, going over, and where the WAL ends then.
    fn check(looks: &[(u64, bool, bool, u64)], expected: Step) {
        let mut course = Course::Meeting { at: Lsn(100) };
        let mut last = Step::Stays;
        for &(flushed, is_wanted, is_going_over, end) in looks {
            assert!(matches!(last, Step::Stays | Step::Moves), "over before {flushed}: {looks:?}");
            last = course.step(Lsn(flushed), is_wanted, is_going_over);
            if last == Step::Moves {
                course.begin_at(Lsn(end));
            }
        }
        assert_eq!(last, expected, "{looks:?}");
    }

    #[test]
    fn what_stands_before_the_message_is_met_proves_nothing() {
        check(&[(90, true, false, 120)], Step::Stays);
        check(&[(90, true, false, 120), (100, true, false, 120)], Step::Followed);
    }

    #[test]
    fn a_source_that_goes_over_is_waited_for_as_long_as_it_takes() {
        let looks =
            [(100, false, false, 110), (115, false, true, 120), (900, false, true, 900), (950, true, true, 960)];
        check(&looks, Step::Followed);
        // Its message stands in the stream by now, and it has not come there.
        let looks =
            [(100, false, true, 110), (115, false, false, 120), (120, false, false, 130), (121, true, false, 130)];
        check(&looks, Step::Followed);
        let looks =
            [(100, false, true, 110), (115, false, false, 120), (118, false, true, 130), (125, false, true, 130)];
        check(&looks, Step::Stays);
    }

    #[test]
    fn a_source_that_goes_on_by_the_list_before_is_not_waited_for() {
        let mut looks = vec![(100, false, false, 110), (110, false, false, 112), (111, false, false, 120)];
        check(&looks, Step::Moves);
        looks.extend([(120, false, false, 121), (121, false, false, 122)]);
        check(&looks, Step::Refused);
    }
}
