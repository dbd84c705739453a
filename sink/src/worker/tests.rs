//! A worker against a target that follows a script: what it applies, how often, and when it lets go.

use std::collections::VecDeque;
use std::sync::Mutex;

use schemas::{Position, Seq, TableName};
use service::config::Document;

use super::*;
use crate::config::{OnError, To};
use crate::parked::{Class, Parked};
use crate::record::tests::segment;

/// What the target answers to the next attempt.
enum Answer {
    Done,
    Passes,
    Fails,
    Lost,
    Parks(i64),
}

/// A target that follows a script, then takes everything.
#[derive(Default)]
struct Scripted {
    answers: Mutex<VecDeque<Answer>>,
    /// Each attempt: the numbers of its records, and how many keys stood still when it was prepared.
    attempts: Mutex<Vec<(Vec<u64>, usize)>>,
    /// What it says of keys that stand still, when it is asked.
    standing: Mutex<ParkedKeys>,
}

fn silent() -> Error {
    Error::Silent { target: "nowhere".to_owned(), operation: "apply a batch", seconds: 1 }
}

impl Target for Scripted {
    type Prepared = usize;
    const ASKS_KAFKA: bool = false;

    async fn claim(&self, _: &Partition, _: Option<i64>) -> Result<Claimed, Error> {
        Err(silent())
    }

    fn prepare(&self, _: &Partition, _: &Batch, parked: &ParkedKeys) -> Result<usize, Error> {
        let table = TableName::new("shop", "t");
        Ok((0..100).filter(|offset| parked.get(&table, offset.to_string().as_bytes()).is_some()).count())
    }

    async fn refresh(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn apply(&self, _: &Claim, batch: &Batch, prepared: &usize, _: &ParkedKeys) -> Result<Outcome, Error> {
        let records: Vec<_> = batch.records().collect();
        self.attempts.lock().expect("no panic").push((records.iter().map(|record| record.seq.0).collect(), *prepared));
        let answer = self.answers.lock().expect("no panic").pop_front().unwrap_or(Answer::Done);
        match answer {
            Answer::Done => Ok(Outcome::Done(Done::default())),
            Answer::Passes => Err(silent()),
            Answer::Fails => Err(Error::Ended { group: "g".to_owned(), part: "the script" }),
            Answer::Lost => Ok(Outcome::Lost),
            Answer::Parks(offset) => {
                let (table, key) = (TableName::new("shop", "t"), offset.to_string().into_bytes());
                let parked = Parked::behind(records[0], &table, &key, Class::Dead);
                Ok(Outcome::Done(Done { parked: vec![parked], ..Done::default() }))
            }
        }
    }

    async fn standing(&self, _: &Partition) -> Result<ParkedKeys, Error> {
        Ok(self.standing.lock().expect("no panic").clone())
    }

    async fn report(&self, _: &Claim, _: &str) {}
}

fn worker(answers: Vec<Answer>) -> Worker<Scripted> {
    let document = Document::parse("[kafka]\nbrokers = \"kafka://127.0.0.1:1\"", std::iter::empty());
    let kafka = kafka::Config::read(&mut document.expect("valid TOML").root().section("kafka"));
    let config = Group {
        name: "g".to_owned(),
        to: To::Postgres,
        tables: schemas::Selection::default(),
        on_error: OnError::Park,
        parked_rows_max: 100,
        batch_rows_max: 2,
        batch_bytes_max: 1 << 20,
        fetch_bytes_max: 1 << 20,
        connections: 1,
        static_member_id: None,
        session_timeout: Duration::from_secs(10),
        dead_letter_topic_create: false,
    };
    let shared = Shared {
        config,
        group_id: "p.g".to_owned(),
        target: Arc::new(Scripted { answers: Mutex::new(answers.into()), ..Scripted::default() }),
        admin: Arc::new(Admin::connect(&kafka).expect("a client connects with its first question")),
        commands: std::sync::mpsc::channel().0,
        slots: Arc::new(Semaphore::new(2)),
        parked: Arc::default(),
    };
    let partition = Partition { topic: "p.shop.t".into(), number: 0 };
    Worker { shared: Arc::new(shared), partition, stop: CancellationToken::new(), done: Arc::new(AtomicI64::new(-1)) }
}

/// Hands over records 1 to 6 behind `progress`, and lets the worker run until it has applied them or lets go.
async fn run(worker: &Worker<Scripted>, progress: Progress) -> Result<Left, Error> {
    let claim = Claim { partition: worker.partition.clone(), number: 1 };
    let (send, segments) = mpsc::unbounded_channel();
    let records: Vec<_> = (1..=6).map(|seq| (seq as i64 - 1, seq, "k", Some("v"))).collect();
    send.send(segment(&records)).expect("the worker listens");
    let claimant = worker.claimant(claim, progress, ParkedKeys::default());
    let applied = async {
        while worker.done.load(Ordering::Relaxed) < 6 {
            tokio::task::yield_now().await;
        }
        worker.stop.cancel();
        std::future::pending().await
    };
    tokio::select! {
        left = claimant.run(segments) => left,
        left = applied => left,
    }
}

fn attempts(worker: &Worker<Scripted>) -> Vec<Vec<u64>> {
    worker.shared.target.attempts.lock().expect("no panic").iter().map(|(records, _)| records.clone()).collect()
}

#[tokio::test]
async fn what_passes_is_tried_again_in_order() {
    let worker = worker(vec![Answer::Done, Answer::Passes, Answer::Passes]);
    assert!(matches!(run(&worker, Progress::NOTHING).await, Ok(Left::Stopped)));
    assert_eq!(attempts(&worker), [vec![1, 2], vec![3, 4], vec![3, 4], vec![3, 4], vec![5, 6]]);
}

#[tokio::test]
async fn a_lost_claim_ends_it_before_anything_else_is_applied() {
    let worker = worker(vec![Answer::Done, Answer::Lost]);
    assert!(matches!(run(&worker, Progress::NOTHING).await, Ok(Left::Lost)));
    assert_eq!(attempts(&worker), [vec![1, 2], vec![3, 4]]);
    assert_eq!(worker.done.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn what_does_not_pass_ends_it() {
    let worker = worker(vec![Answer::Passes, Answer::Fails]);
    assert!(matches!(run(&worker, Progress::NOTHING).await, Err(Error::Ended { .. })));
    assert_eq!(attempts(&worker), [vec![1, 2], vec![1, 2]]);
}

/// Invariant 7: the batch behind was made ready before the key stood still.
#[tokio::test]
async fn a_batch_made_ready_before_a_key_was_parked_is_made_again() {
    let worker = worker(vec![Answer::Parks(7)]);
    assert!(matches!(run(&worker, Progress::NOTHING).await, Ok(Left::Stopped)));
    let attempts = worker.shared.target.attempts.lock().expect("no panic").clone();
    assert_eq!(attempts, [(vec![1, 2], 0), (vec![3, 4], 1), (vec![5, 6], 1)]);
}

#[tokio::test]
async fn the_first_record_must_be_the_one_that_was_done_last() {
    let position = |seq: u64| Position { commit: schemas::Lsn(seq), change: schemas::Lsn(seq), n: 1 };
    let at = |seq: u64, position| Progress { next_offset: 2, last_offset: 1, seq: Seq(seq), position };

    let same = worker(Vec::new());
    assert!(matches!(run(&same, at(2, position(2))).await, Ok(Left::Stopped)));
    assert_eq!(attempts(&same), [vec![3, 4], vec![5, 6]]);

    for other in [at(2, position(9)), at(3, position(2))] {
        let worker = worker(Vec::new());
        assert!(matches!(run(&worker, other).await, Err(Error::OtherHistory { .. })));
        assert_eq!(attempts(&worker), Vec::<Vec<u64>>::new());
    }
}
