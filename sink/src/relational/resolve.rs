//! Keys that stand still since something was in their way, tried again: it may be gone by now, or they are in each other's way.
//!
//!     chosen ─▶ their partitions' progress locked ─▶ events read
//!        ─▶ each key as it stands, until a pass adds nothing            a value that another key has given away since
//!        ─▶ what is left: all rows away first, then in again            a value that two rows have exchanged
//!        ─▶ applied: parked no more.  refused: why, and whether it can ever be otherwise
//!
//! One transaction. Whoever owns one of the partitions waits for it in his next compare-and-set, so nobody applies or parks
//! an event of these keys meanwhile; behind it he may take a key for parked that is not any more, parks an event that
//! nothing stands in front of, and that is tried here with the next look. What a key comes to is what its own events say, in
//! their order: it does not matter how far other partitions are. So a key is never given up for what others may still change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use postgres::quote;
use postgres::sqlstate::Severity;
use schemas::{Columns, TableName};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Executor, Row};

use super::plan::{self, Change, Plan};
use super::{Relational, Write};
use crate::error::Error;
use crate::parked::{Class, Kept, ParkedKeys, as_it_stood};
use crate::record::{Budget, Partition, Segment};
use crate::refused::Refused;
use crate::statement::{self, Statement};

/// So many keys are tried at once, so that the owners of their partitions wait but a moment …
const KEYS_MAX: i64 = 2_000;
/// … and of so many bytes, but for a single key of more.
const BYTES_MAX: i64 = 8 << 20;

/// How long it is waited for the owner of one partition, while those of others wait for us.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '500ms'";

/// Keys of which the first event may apply by now, and how large they are. At random, so that of more than are tried at once
/// each pair meets.
const CHOSEN: &str = "
WITH first AS (
    SELECT DISTINCT ON (topic, part, tbl, key) topic, part, tbl, key, class, attempts
    FROM tributary.parked WHERE grp = $1 AND topic = ANY ($2) ORDER BY topic, part, tbl, key, off),
chosen AS (SELECT * FROM first WHERE class = 'undecided' OR attempts = 0 ORDER BY random() LIMIT $3)
SELECT c.topic, c.part, c.tbl, c.key,
       (SELECT sum(octet_length(p.record::text))::int8 FROM tributary.parked p
        WHERE p.grp = $1 AND p.tbl = c.tbl AND p.key = c.key AND p.topic = c.topic AND p.part = c.part)
FROM chosen c";

const LOCKED: &str = "SELECT FROM tributary.progress WHERE grp = $1 AND topic = $2 AND part = $3 FOR UPDATE";

/// A truncate that comes first has taken them away; one that comes later waits for us.
const EVENTS: &str = "
SELECT p.topic, p.part, p.tbl, p.key, p.off, p.record::text
FROM unnest($2::text[], $3::int4[], $4::text[], $5::text[]) v (topic, part, tbl, key)
JOIN tributary.parked p ON p.grp = $1 AND p.tbl = v.tbl AND p.key = v.key AND p.topic = v.topic AND p.part = v.part
ORDER BY p.topic, p.part, p.tbl, p.key, p.off FOR UPDATE OF p";

const APPLIED: &str = "
DELETE FROM tributary.parked p USING unnest($2::text[], $3::int4[], $4::int8[]) v (topic, part, off)
WHERE p.grp = $1 AND p.topic = v.topic AND p.part = v.part AND p.off = v.off";

const REFUSED: &str = "
UPDATE tributary.parked p SET attempts = attempts + 1, last_at = now(), class = v.class, cause = v.cause, sqlstate = v.sqlstate
FROM unnest($2::text[], $3::int4[], $4::int8[], $5::text[], $6::text[], $7::text[]) v (topic, part, off, class, cause, sqlstate)
WHERE p.grp = $1 AND p.topic = v.topic AND p.part = v.part AND p.off = v.off";

/// Whether a key stands still at an event that can never apply.
const DEAD: &str = "
SELECT count(*) FROM (
    SELECT DISTINCT ON (topic, part, tbl, key) class, attempts
    FROM tributary.parked WHERE grp = $1 AND topic = ANY ($2) ORDER BY topic, part, tbl, key, off) first
WHERE class = 'dead' AND attempts > 0";

/// Whether more is set aside than may be.
const MANY: &str = "
SELECT count(*) > $3 FROM (SELECT FROM tributary.parked WHERE grp = $1 AND topic = ANY ($2) LIMIT $3 + 1) p";

/// What came of one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Events that were applied.
    pub(crate) events: usize,
    /// Keys that were tried and stand still.
    pub(crate) left: usize,
    /// Keys of them for which there was no time.
    pub(crate) untried: usize,
    /// Keys of them that can only go on once a person has done something.
    pub(crate) dead: usize,
}

/// A key that stands still, and its events.
struct Key {
    /// Its number among those that are tried together.
    id: usize,
    partition: Partition,
    table: TableName,
    name: String,
    offsets: Vec<i64>,
    events: Segment,
}

/// Keys that were not applied.
#[derive(Default)]
struct Left<'k> {
    refused: Vec<(&'k Key, Refused)>,
    untried: Vec<&'k Key>,
}

impl Relational {
    /// Tries what is parked of these topics and may apply by now, for about so long each way. Does nothing while another
    /// process is at it.
    pub(crate) async fn resolve(&self, topics: &[String], patience: Duration) -> Result<Resolved, Error> {
        let work = async {
            let mut lease = self.pool.get().await?;
            let resolved = self.resolve_within(lease.connection(), topics, patience).await?;
            lease.keep();
            Ok(resolved)
        };
        self.within("try parked events again", work).await
    }

    /// Whether more than so many events of these topics are set aside.
    pub(crate) async fn has_many_parked(&self, topics: &[String], max: u32) -> Result<bool, Error> {
        let work = async {
            let mut lease = self.pool.get().await?;
            let asked = sqlx::query(MANY).bind(&self.group).bind(topics).bind(i64::from(max));
            let row = asked.fetch_one(lease.connection()).await;
            let is_many = row.map_err(|cause| self.failed("count parked events", cause))?.get(0);
            lease.keep();
            Ok(is_many)
        };
        self.within("count parked events", work).await
    }

    /// How many keys stand still at events that can never apply.
    pub(crate) async fn dead(&self, topics: &[String]) -> Result<usize, Error> {
        let work = async {
            let mut lease = self.pool.get().await?;
            let asked = sqlx::query(DEAD).bind(&self.group).bind(topics).fetch_one(lease.connection()).await;
            let dead: i64 = asked.map_err(|cause| self.failed("count parked keys", cause))?.get(0);
            lease.keep();
            Ok(usize::try_from(dead).unwrap_or_default())
        };
        self.within("count parked keys", work).await
    }

    async fn resolve_within(
        &self,
        connection: &mut PgConnection,
        topics: &[String],
        patience: Duration,
    ) -> Result<Resolved, Error> {
        let failed = |cause| self.failed("try parked events again", cause);
        connection.execute("BEGIN").await.map_err(failed)?;
        let resolved = match self.hold(connection, topics).await? {
            keys if keys.is_empty() => Resolved::default(),
            keys => self.try_again(connection, &keys, patience).await?,
        };
        connection.execute("COMMIT").await.map_err(failed)?;
        Ok(resolved)
    }

    /// The keys, of which nobody applies or parks anything until the transaction ends.
    async fn hold(&self, connection: &mut PgConnection, topics: &[String]) -> Result<Vec<Key>, Error> {
        let failed = |cause| self.failed("read parked events", cause);
        // Two who try the same keys at once would only wait for each other.
        let sql = "SELECT pg_try_advisory_xact_lock(hashtextextended('tributary resolve ' || $1, 0))";
        let alone = sqlx::query(sql).bind(&self.group).fetch_one(&mut *connection).await.map_err(failed)?;
        if !alone.get::<bool, _>(0) {
            return Ok(Vec::new());
        }
        let chosen = sqlx::query(CHOSEN).bind(&self.group).bind(topics).bind(KEYS_MAX);
        let chosen = chosen.fetch_all(&mut *connection).await.map_err(failed)?.into_iter();
        let is_taken = |row: &PgRow| row.get::<&str, _>(2).parse().is_ok_and(|table| self.catalog.takes(&table));
        let (mut count, mut bytes) = (0, 0);
        let fits = |row: &PgRow| {
            (count, bytes) = (count + 1, bytes + row.get::<Option<i64>, _>(4).unwrap_or_default());
            // Two that are in each other's way must be able to meet, however large they are.
            count <= 2 || bytes <= BYTES_MAX
        };
        let mut chosen: Vec<PgRow> = chosen.filter(is_taken).take_while(fits).collect();
        let partitions: BTreeSet<(String, i32)> = chosen.iter().map(|row| (row.get(0), row.get(1))).collect();
        let locked = self.lock(connection, partitions).await?;
        chosen.retain(|row| locked.contains(&(row.get(0), row.get(1))));
        let text = |column: usize| chosen.iter().map(|row| row.get(column)).collect::<Vec<String>>();
        let partitions: Vec<i32> = chosen.iter().map(|row| row.get(1)).collect();
        let events = sqlx::query(EVENTS).bind(&self.group).bind(text(0)).bind(partitions).bind(text(2)).bind(text(3));
        let events = events.fetch_all(connection).await;
        events.and_then(|events| keys(&events)).map_err(failed)
    }

    /// Locks the progress of partitions, in the order in which all do who lock several. Those of which the owner is at it for
    /// long are left out.
    async fn lock(
        &self,
        connection: &mut PgConnection,
        partitions: BTreeSet<(String, i32)>,
    ) -> Result<HashSet<(String, i32)>, Error> {
        let failed = |cause| self.failed("lock the progress", cause);
        self.savepoint(connection, LOCK_TIMEOUT).await?;
        let mut locked = HashSet::new();
        for (topic, number) in partitions {
            self.begin_part(connection).await?;
            let lock = sqlx::query(LOCKED).bind(&self.group).bind(&topic).bind(number);
            match lock.fetch_optional(&mut *connection).await {
                Ok(_) => {
                    self.end_part(connection, true).await?;
                    locked.insert((topic, number));
                }
                Err(cause) if cause.as_database_error().is_some_and(|it| it.code().as_deref() == Some("55P03")) => {
                    self.end_part(connection, false).await?;
                }
                Err(cause) => return Err(failed(cause)),
            }
        }
        self.savepoint(connection, "SET LOCAL lock_timeout = '5s'").await?;
        Ok(locked)
    }

    async fn try_again(
        &self,
        connection: &mut PgConnection,
        keys: &[Key],
        patience: Duration,
    ) -> Result<Resolved, Error> {
        let failed = |cause| self.failed("try parked events again", cause);
        let until = Instant::now() + patience;
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE").await.map_err(failed)?;
        let (mut together, mut singly, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for key in keys {
            match self.is_foldable(key) {
                Ok(true) => together.push((key, &key.events)),
                Ok(false) => singly.push(key),
                Err(why) => refused.push((key, why)),
            }
        }
        let left = self.apply_keys(connection, together, until).await?;
        refused.extend(left.refused);
        let mut untried = left.untried;
        // What is called dead or unfit may be so by our own idea of the table alone: it was altered since.
        let is_stale =
            |left: &(&Key, Refused)| Class::of(&left.1) == Some(Class::Dead) || matches!(left.1, Refused::Unfit(_));
        let (stale, undecided): (Vec<_>, Vec<_>) = refused.into_iter().partition(is_stale);
        refused = undecided;
        if !stale.is_empty() {
            self.look_again(connection, stale.iter().map(|(key, _)| *key)).await?;
            let (again, unfit): (Vec<_>, Vec<_>) =
                stale.into_iter().partition(|(key, _)| self.is_foldable(key).is_ok_and(|is| is));
            refused.extend(unfit);
            let again = again.iter().map(|(key, _)| (*key, &key.events)).collect();
            let left = self.apply_keys(connection, again, until).await?;
            refused.extend(left.refused);
            untried.extend(left.untried);
        }
        let (exchanged, hurried) = self.exchange(connection, &refused, Instant::now() + patience).await?;
        refused.retain(|(key, _)| !exchanged.contains(&key.id));
        let left: HashSet<usize> =
            refused.iter().map(|(key, _)| key).chain(&untried).chain(&singly).map(|key| key.id).collect();
        let mut applied: Vec<(&Key, i64)> = Vec::new();
        for key in keys.iter().filter(|key| !left.contains(&key.id)) {
            applied.extend(key.offsets.iter().map(|offset| (key, *offset)));
        }
        // Of a key that can never apply as a whole it matters which of its events is at fault.
        let (dead, others): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|(key, why)| Class::of(why) == Some(Class::Dead) && key.offsets.len() > 1);
        let mut at_fault: Vec<(&Key, i64, Refused)> =
            others.into_iter().map(|(key, why)| (key, key.offsets[0], why)).collect();
        let (mut hurried, until) = (hurried + untried.len(), Instant::now() + patience);
        for key in dead.into_iter().map(|(key, _)| key).chain(singly) {
            let (done, why) = self.one_by_one(connection, key, until).await?;
            applied.extend(key.offsets[..done].iter().map(|offset| (key, *offset)));
            match why {
                Some(why) => at_fault.push((key, key.offsets[done], why)),
                None => hurried += usize::from(done < key.offsets.len()),
            }
        }
        self.forget(connection, &applied).await.map_err(failed)?;
        self.note(connection, &at_fault).await.map_err(failed)?;
        let dead = at_fault.iter().filter(|(_, _, why)| Class::of(why) == Some(Class::Dead)).count();
        Ok(Resolved { events: applied.len(), left: at_fault.len() + hurried, untried: hurried, dead })
    }

    /// Whether a key's events may be folded. Not where equal keys of its table can differ in text, and all of its rows stand still
    /// as one; nor where its key would read otherwise by now: then others of it may have been applied already.
    fn is_foldable(&self, key: &Key) -> Result<bool, Refused> {
        let unfit = |why: String| Refused::Unfit(why);
        let text = key.events.record(0).key.unwrap_or_default();
        let columns = Columns::decode(text).map_err(|cause| unfit(cause.to_string()))?;
        let shape = self.catalog.shape(&key.table, &columns).map_err(|misfit| unfit(misfit.to_string()))?;
        let canonical = shape.canonical(text).map_err(|cause| unfit(cause.to_string()))?;
        match *canonical == *key.name.as_bytes() {
            true => Ok(shape.foldable),
            false => {
                Err(unfit("its key reads otherwise by the table as it is now: `tributary dlq resync` it".to_owned()))
            }
        }
    }

    /// Reads the catalog for the tables of these keys again, and keeps them from being altered.
    async fn look_again(&self, connection: &mut PgConnection, keys: impl Iterator<Item = &Key>) -> Result<(), Error> {
        let tables: BTreeSet<&TableName> = keys.map(|key| &key.table).collect();
        let tables: Vec<TableName> = tables.into_iter().cloned().collect();
        for table in &tables {
            self.begin_part(connection).await?;
            let lock = format!("LOCK TABLE {} IN ROW EXCLUSIVE MODE", quote::table(table));
            let refused = match connection.execute(sqlx::raw_sql(AssertSqlSafe(lock))).await {
                Ok(_) => None,
                Err(cause) => self.bearable(Write::Refused(Refused::Server(cause)))?,
            };
            // A table that is gone, or not ours any more, is missing from the catalog too.
            self.end_part(connection, refused.is_none()).await?;
        }
        self.read_catalog_within(connection, &tables).await
    }

    /// Applies as many of the keys as can be within the time for it, and tells the others.
    async fn apply_keys<'k>(
        &self,
        connection: &mut PgConnection,
        mut keys: Vec<(&'k Key, &Segment)>,
        until: Instant,
    ) -> Result<Left<'k>, Error> {
        loop {
            let count = keys.len();
            let (mut parts, mut refused, mut untried) = (vec![keys], Vec::new(), Vec::new());
            while let Some(mut part) = parts.pop() {
                if Instant::now() > until {
                    untried.append(&mut part);
                    continue;
                }
                match self.apply_part(connection, &part).await? {
                    None => {}
                    Some(why) if part.len() == 1 => refused.push((part[0], why)),
                    Some(_) => {
                        let second = part.split_off(part.len() / 2);
                        parts.extend([second, part]);
                    }
                }
            }
            if refused.is_empty() || refused.len() == count || !untried.is_empty() {
                let refused = refused.into_iter().map(|((key, _), why)| (key, why)).collect();
                return Ok(Left { refused, untried: untried.into_iter().map(|(key, _)| key).collect() });
            }
            // What was in the way of these may have gone with the others.
            keys = refused.into_iter().map(|(key, _)| key).collect();
        }
    }

    /// Applies keys under a savepoint, all or none. Why none, if so; of several that need not be the reason of each.
    async fn apply_part(
        &self,
        connection: &mut PgConnection,
        keys: &[(&Key, &Segment)],
    ) -> Result<Option<Refused>, Error> {
        let mut by_partition: BTreeMap<&Partition, Vec<&Segment>> = BTreeMap::new();
        keys.iter().for_each(|(key, events)| by_partition.entry(&key.partition).or_default().push(events));
        let mut statements: Vec<(&Partition, Statement)> = Vec::new();
        for (partition, segments) in by_partition {
            let records = segments.iter().flat_map(|events| (0..events.len()).map(|index| events.record(index)));
            match Plan::rows(partition, records, &self.catalog, &ParkedKeys::default()) {
                Ok(Plan::Rows(rows)) => {
                    statements.extend(rows.statements.into_iter().map(|statement| (partition, statement)));
                }
                Ok(Plan::OneByOne | Plan::Control(_)) => {
                    return Ok(Some(Refused::Unfit("its table's events are applied one by one".to_owned())));
                }
                // The table is not what it was when the event was set aside.
                Err(error) => return Ok(Some(Refused::Unfit(service::chain(&error).to_string()))),
            }
        }
        statements.sort_by_key(|(_, statement)| statement.kind);
        self.begin_part(connection).await?;
        for (partition, statement) in statements {
            let written = self.write(connection, partition, std::slice::from_ref(&statement)).await?;
            if let Some(why) = self.bearable(written)? {
                self.end_part(connection, false).await?;
                return Ok(Some(why));
            }
        }
        self.end_part(connection, true).await?;
        Ok(None)
    }

    /// Applies a key's events one after the other, up to one that is refused or until the time is over: how many, and why no more.
    async fn one_by_one(
        &self,
        connection: &mut PgConnection,
        key: &Key,
        until: Instant,
    ) -> Result<(usize, Option<Refused>), Error> {
        for index in 0..key.offsets.len() {
            if index > 0 && Instant::now() > until {
                return Ok((index, None));
            }
            let statements = match self.single(key, index) {
                Ok(statements) => statements,
                Err(error) => return Ok((index, Some(Refused::Unfit(service::chain(&error).to_string())))),
            };
            self.begin_part(connection).await?;
            let written = self.write(connection, &key.partition, &statements).await?;
            if let Some(why) = self.bearable(written)? {
                self.end_part(connection, false).await?;
                return Ok((index, Some(why)));
            }
            self.end_part(connection, true).await?;
        }
        Ok((key.offsets.len(), None))
    }

    /// What one of its events comes to by itself.
    fn single(&self, key: &Key, index: usize) -> Result<Vec<Statement>, Error> {
        let record = key.events.record(index);
        let change = Change::of(&key.partition, record)?;
        let mut fold = change.fold(&key.partition, record, &self.catalog)?;
        plan::add(&key.partition, record, &mut fold, change)?;
        Ok(statement::statements(&[fold]))
    }

    /// Why a statement was refused, if that will not pass by itself. A row that is missing may be on its way with a load: then its
    /// event waits for it here, and nothing is forgotten that the load might not bring.
    fn bearable(&self, written: Write) -> Result<Option<Refused>, Error> {
        match written {
            Write::Done { skipped: 0 } => Ok(None),
            Write::Done { .. } => Ok(Some(Refused::NoRow)),
            Write::Refused(refused) if refused.severity() == Severity::Transient => Err(self.failed_at_parked(refused)),
            Write::Refused(refused) => Ok(Some(refused)),
        }
    }

    fn failed_at_parked(&self, refused: Refused) -> Error {
        match refused {
            Refused::Server(cause) => self.failed("try parked events again", cause),
            Refused::NoRow | Refused::Unfit(_) => unreachable!("such a refusal never passes by itself"),
        }
    }

    /// Rows that are in each other's way: all are taken away, and brought back as their events leave them. One that does not
    /// come back that way stays as it stands, and so does what it is in the way of. Those that were applied, by their numbers,
    /// and for how many there was no time.
    async fn exchange(
        &self,
        connection: &mut PgConnection,
        refused: &[(&Key, Refused)],
        until: Instant,
    ) -> Result<(HashSet<usize>, usize), Error> {
        // What does not fit the table as it is must not be applied in this way either.
        let may_pass = |why: &Refused| !matches!(why, Refused::Unfit(_)) && Class::of(why) == Some(Class::Undecided);
        let undecided = refused.iter().filter(|(_, why)| may_pass(why));
        let mut keys: Vec<&Key> = undecided.map(|(key, _)| *key).collect();
        if keys.len() > 1 {
            // A row comes back with the columns that we know of, so we must know of all.
            self.look_again(connection, keys.iter().copied()).await?;
        }
        while keys.len() > 1 && Instant::now() < until {
            self.begin_part(connection).await?;
            let whole = self.take_away(connection, &keys).await?;
            let all = whole.iter().map(|(key, events)| (*key, events)).collect();
            let left = self.apply_keys(connection, all, until).await?;
            let is_done = left.refused.is_empty() && left.untried.is_empty();
            if is_done && whole.len() == keys.len() {
                self.end_part(connection, true).await?;
                return Ok((keys.into_iter().map(|key| key.id).collect(), 0));
            }
            self.end_part(connection, false).await?;
            let without: HashSet<usize> = left.refused.iter().map(|(key, _)| key.id).collect();
            keys = whole.into_iter().map(|(key, _)| key).filter(|key| !without.contains(&key.id)).collect();
        }
        Ok((HashSet::new(), if keys.len() > 1 && Instant::now() >= until { keys.len() } else { 0 }))
    }

    /// Takes the rows of these keys away. Each key with its row as it stood in front of its events, so that columns which
    /// these do not bring come back too. Tables whose keys are not told apart by their text are left out.
    async fn take_away<'k>(
        &self,
        connection: &mut PgConnection,
        keys: &[&'k Key],
    ) -> Result<Vec<(&'k Key, Segment)>, Error> {
        let mut by_table: HashMap<&TableName, Vec<&'k Key>> = HashMap::new();
        keys.iter().for_each(|key| by_table.entry(&key.table).or_default().push(key));
        let mut whole = Vec::new();
        for (table, keys) in by_table {
            let names: Result<Vec<Columns<'_>>, _> =
                keys.iter().map(|key| Columns::decode(key.name.as_bytes())).collect();
            let Some(names) = names.ok().filter(|names| !names.is_empty()) else { continue };
            let Some(shape) = self.catalog.shape(table, &names[0]).ok().filter(|shape| shape.foldable) else {
                continue;
            };
            let arrays = statement::key_arrays(&shape, &names);
            let mut query = sqlx::query(AssertSqlSafe(statement::read(&shape)));
            for array in &arrays {
                query = query.bind(array);
            }
            self.begin_part(connection).await?;
            let rows = match query.fetch_all(&mut *connection).await {
                Ok(rows) => rows,
                Err(cause) => {
                    self.bearable(Write::Refused(Refused::Server(cause)))?;
                    self.end_part(connection, false).await?;
                    continue;
                }
            };
            self.end_part(connection, true).await?;
            let place = |row: &PgRow| usize::try_from(row.get::<i64, _>(0)).unwrap_or_default();
            let stood: HashMap<usize, String> = rows.iter().map(|row| (place(row), row.get(1))).collect();
            if self.delete(connection, &statement::take_away(&shape, arrays)).await? {
                for (place, key) in (1..).zip(&keys) {
                    whole.extend(key.behind(stood.get(&place).map(String::as_str)).map(|events| (*key, events)));
                }
                continue;
            }
            // Something depends on one of them: it stays, and the others go.
            for ((place, key), name) in (1..).zip(&keys).zip(&names) {
                let Some(events) = key.behind(stood.get(&place).map(String::as_str)) else { continue };
                let alone = statement::key_arrays(&shape, std::slice::from_ref(name));
                if self.delete(connection, &statement::take_away(&shape, alone)).await? {
                    whole.push((*key, events));
                }
            }
        }
        Ok(whole)
    }

    /// Takes rows away, under a savepoint. Whether they are gone.
    async fn delete(&self, connection: &mut PgConnection, statement: &Statement) -> Result<bool, Error> {
        self.begin_part(connection).await?;
        let mut query = sqlx::query(AssertSqlSafe(statement.sql.as_str()));
        for array in &statement.arrays {
            query = query.bind(array);
        }
        let refused = match query.execute(&mut *connection).await {
            Ok(_) => None,
            Err(cause) => self.bearable(Write::Refused(Refused::Server(cause)))?,
        };
        self.end_part(connection, refused.is_none()).await?;
        Ok(refused.is_none())
    }

    async fn forget(&self, connection: &mut PgConnection, applied: &[(&Key, i64)]) -> Result<(), sqlx::Error> {
        sqlx::query(APPLIED)
            .bind(&self.group)
            .bind(applied.iter().map(|(key, _)| key.partition.topic.to_string()).collect::<Vec<_>>())
            .bind(applied.iter().map(|(key, _)| key.partition.number).collect::<Vec<_>>())
            .bind(applied.iter().map(|(_, offset)| *offset).collect::<Vec<_>>())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn note(&self, connection: &mut PgConnection, refused: &[(&Key, i64, Refused)]) -> Result<(), sqlx::Error> {
        let class = |why: &Refused| Class::of(why).unwrap_or(Class::Undecided).to_string();
        sqlx::query(REFUSED)
            .bind(&self.group)
            .bind(refused.iter().map(|(key, ..)| key.partition.topic.to_string()).collect::<Vec<_>>())
            .bind(refused.iter().map(|(key, ..)| key.partition.number).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, offset, _)| *offset).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, _, why)| class(why)).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, _, why)| why.in_full()).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, _, why)| why.sqlstate()).collect::<Vec<_>>())
            .execute(connection)
            .await
            .map(drop)
    }

    /// Something that may have to be undone begins here. Such can stand in each other.
    async fn begin_part(&self, connection: &mut PgConnection) -> Result<(), Error> {
        self.savepoint(connection, "SAVEPOINT part").await
    }

    /// It ends, and stays or is undone.
    async fn end_part(&self, connection: &mut PgConnection, stays: bool) -> Result<(), Error> {
        let end = if stays { "RELEASE SAVEPOINT part" } else { "ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part" };
        self.savepoint(connection, end).await
    }

    pub(super) async fn savepoint(&self, connection: &mut PgConnection, sql: &'static str) -> Result<(), Error> {
        connection.execute(sql).await.map(drop).map_err(|cause| self.failed("set a savepoint", cause))
    }
}

impl Key {
    /// Its events behind its row as it stood, told as one more event in front of them; `row` is the object of its columns.
    /// `None` where the events say too little of where they come from.
    fn behind(&self, row: Option<&str>) -> Option<Segment> {
        let mut whole = Segment::new(&Budget::default());
        if let Some(row) = row {
            let value = as_it_stood(self.events.record(0).value?, row)?;
            whole.copy_from(&self.events, 0, Some(value.as_bytes()));
        }
        (0..self.events.len()).for_each(|index| whole.copy_from(&self.events, index, None));
        Some(whole)
    }
}

/// Events of keys, one key after the other, as keys.
fn keys(rows: &[PgRow]) -> Result<Vec<Key>, sqlx::Error> {
    let mut keys: Vec<Key> = Vec::new();
    for row in rows {
        let (topic, number): (&str, i32) = (row.get(0), row.get(1));
        let (table, name): (&str, &str) = (row.get(2), row.get(3));
        let table = table.parse::<TableName>().map_err(|error| sqlx::Error::Decode(error.into()))?;
        let offset = row.get(4);
        let is_of = |key: &Key| {
            (&*key.partition.topic, key.partition.number) == (topic, number) && key.table == table && key.name == name
        };
        if !keys.last().is_some_and(is_of) {
            let partition = Partition { topic: topic.into(), number };
            let events = Segment::new(&Budget::default());
            let (id, name) = (keys.len(), name.to_owned());
            keys.push(Key { id, partition, table, name, offsets: Vec::new(), events });
        }
        let Some(key) = keys.last_mut() else { continue };
        let kept: Kept<'_> = serde_json::from_str(row.get(5)).map_err(|error| sqlx::Error::Decode(error.into()))?;
        kept.push(offset, &mut key.events).map_err(|error| sqlx::Error::Decode(error.into()))?;
        key.offsets.push(offset);
    }
    Ok(keys)
}
