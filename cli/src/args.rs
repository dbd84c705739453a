//! What may be written on the command line, and what `--help` teaches about it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

const ABOUT: &str = "\
tributary reads the changes of a PostgreSQL database, publishes each once to Kafka, and lets groups apply them elsewhere: \
into another PostgreSQL database, or as notices in Redis. Nothing is lost, nothing comes twice, and every row keeps its order.

The usual way:

  tributary init       write a sample tributary.toml, then put your addresses and tables in
  tributary doctor     see what is missing on the servers, each with its remedy
  tributary run        copy the tables and follow them, in one process
  tributary status     see where every part is
  tributary verify     compare the numbers of rows on both sides

Larger installations run `tributary source` once and `tributary sink` as often as they like.";

const AFTER: &str = "\
Configuration: one TOML file (--config), and over it the environment: TRIBUTARY_SOURCE__PASSWORD stands over the key \
`password` of the section [source]. All faults are told at once, before any server is contacted.

Exit codes:
  0  done, and nothing to report
  1  something was found: a difference, a fault, a parked event
  2  could not run or could not tell: the configuration, a server out of reach, an error that only a person can mend";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "tributary", version, about = "Move tables out of a live PostgreSQL through Kafka", long_about = ABOUT)]
#[command(after_help = AFTER, arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Arguments {
    /// The configuration file
    #[arg(long, short, global = true, value_name = "FILE", default_value = "tributary.toml", env = "TRIBUTARY_CONFIG")]
    pub(crate) config: PathBuf,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Publish the changes of the source database to Kafka
    ///
    /// Takes the replication slot, copies the tables that were never copied, and follows them. Runs until SIGTERM or SIGINT.
    /// A second one started beside it waits for the slot and takes over when the first is gone: a stand-by is that simple.
    ///
    /// Needs [source] and [kafka]. Publication and slot are made when source.create = true, topics when
    /// source.topics.create = true; otherwise what is missing is told, with the SQL for it.
    Source,

    /// Apply events from Kafka: into the target database, as notices in Redis
    ///
    /// Runs the configured groups, each at its own pace, until SIGTERM or SIGINT. Started several times, on one machine or
    /// many, the processes share the partitions; when one dies the others take over what it had.
    ///
    /// Needs [kafka], [groups.*], and [target] or [redis] for what the groups feed. The tables must exist in the target.
    Sink(Groups),

    /// Source and sink in one process
    ///
    /// What most people with one machine want. If one part cannot go on, the other is stopped too.
    Run(Groups),

    /// Compare the numbers of rows on both sides
    ///
    /// Counts only: equal counts do not prove equal rows. Each side is counted in one snapshot; the two are not taken at one
    /// place in the stream, so while changes are under way a difference may be what is under way. Stop the writes, or give
    /// --within, and a table that differs is counted again until it agrees or the time is over.
    ///
    /// Exit code 0: as many rows everywhere. 1: a difference. 2: a table could not be counted.
    Verify(Verify),

    /// Look at events that were set aside, and settle them
    ///
    /// An event that cannot be applied is parked in the target database with all later events of its key, so that the rest
    /// goes on: `dead` when it will never apply as it is, `undecided` when other events may make it possible. Undecided ones
    /// are tried again by the sink itself. Of a dead one, mend the cause and `retry`, fetch the row anew with `resync`, or
    /// `discard` it.
    #[command(subcommand)]
    Dlq(Dlq),

    /// Show where every part is: tables, slot, groups and partitions
    ///
    /// Lag is in records, counted from the numbers that tributary gives them: 0 is caught up. Offsets are Kafka's own: one of
    /// them belongs to the end of each transaction, so a group that is done may stand one before the end.
    ///
    /// Exit code 0: all is well. 1: something needs a person: parked events, a group's error, a slot that is lost. 2: a part
    /// could not be asked.
    Status(Form),

    /// Look at the replication slot, or remove it
    ///
    /// As long as the slot is there, the source server keeps all WAL that tributary has not confirmed.
    #[command(subcommand)]
    Slot(Slot),

    /// The topics that tributary publishes to
    #[command(subcommand)]
    Topic(Topic),

    /// Load tables again, a range of one, or single rows by their keys; see how far loads are
    ///
    /// A message in the stream of the source tells it what to read, so it goes on streaming meanwhile, and a source that does
    /// not run now meets the message when it starts. Each command waits until the running source has taken it up.
    #[command(subcommand)]
    Snapshot(Snapshot),

    /// Put tables on the list of what is published, or take them off
    ///
    /// The list stands in one place, source.tables of the configuration file. It is changed there, comments and all else stay,
    /// and the running source is told by a message in its stream to read its file again: it goes over to the new list at one
    /// place of the stream, so that nothing is lost or published twice.
    #[command(subcommand)]
    Table(Table),

    /// Check the servers for what tributary needs, and say how to get it
    ///
    /// Changes nothing. Run it before the first start, and whenever something is odd.
    ///
    /// Exit code 0: ready. 1: at least one fault.
    Doctor(Form),

    /// Write a commented sample configuration to the file of --config
    ///
    /// Never overwrites a file.
    Init,
}

/// Which groups.
#[derive(Debug, Args)]
pub(crate) struct Groups {
    /// Run only this group; may be given several times. By default all that are configured
    #[arg(long = "group", value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// How to print.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Form {
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// How to compare.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Compare only this table, as schema.table; may be given several times
    #[arg(long = "table", value_name = "TABLE")]
    pub(crate) tables: Vec<schemas::TableName>,

    /// Count a differing table again for so long before it is reported
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) within: u64,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// What to look at.
#[derive(Debug, Subcommand)]
pub(crate) enum Dlq {
    /// List parked events, by group, topic, partition and offset
    ///
    /// Exit code 0: nothing is parked. 1: something is.
    List(DlqList),

    /// Show one parked event whole: key, value, headers, and why it could not be applied
    ///
    /// Prints the values of the row: mind who reads along.
    Show(DlqShow),

    /// Have events tried again, with all that is parked of their keys
    ///
    /// After its cause was mended: the events of a key are applied in their order, or stay as they are.
    ///
    /// Exit code 0: all were applied. 1: some stand still, or nobody has tried them. 2: a fault.
    Retry(DlqSettle),

    /// Fetch the rows of parked events from the source, as they are by now
    ///
    /// Orders the keys of the source, as `snapshot start --key` does. The answer takes the place of all that is parked of its
    /// key in this group. Other groups that take the table get it too.
    ///
    /// Exit code 0: all were answered. 1: some were not yet. 2: a fault.
    Resync(DlqSettle),

    /// Give events up, and let what is parked behind them go on
    ///
    /// The row stays in the target as it stands there, unless later events change it: mind that both sides may differ then.
    Discard(DlqSettle),
}

/// Which parked events to settle.
#[derive(Debug, Args)]
pub(crate) struct DlqSettle {
    /// Their places as `dlq list` prints them: GROUP:TOPIC:PARTITION:OFFSET
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "PLACE")]
    pub(crate) places: Vec<crate::dlq::Place>,

    /// All that are parked, or all of those that --group, --table and --class choose
    #[arg(long)]
    pub(crate) all: bool,

    /// Only those of this group
    #[arg(long, value_name = "NAME", requires = "all")]
    pub(crate) group: Option<String>,

    /// Only those of this table, as schema.table
    #[arg(long, value_name = "TABLE", requires = "all")]
    pub(crate) table: Option<schemas::TableName>,

    /// Only those of this class
    #[arg(long, value_enum, requires = "all")]
    pub(crate) class: Option<Class>,

    /// Only say which events are meant
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Wait so long until a sink has tried them, 0 not at all
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) within: u64,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// Which parked events.
#[derive(Debug, Args)]
pub(crate) struct DlqList {
    /// Only those of this group
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,

    /// Only those of this table, as schema.table
    #[arg(long, value_name = "TABLE")]
    pub(crate) table: Option<schemas::TableName>,

    /// Only those of this class
    #[arg(long, value_enum)]
    pub(crate) class: Option<Class>,

    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub(crate) limit: u32,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// One parked event.
#[derive(Debug, Args)]
pub(crate) struct DlqShow {
    /// Its place as `dlq list` prints it: GROUP:TOPIC:PARTITION:OFFSET
    pub(crate) place: crate::dlq::Place,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// What to do about the list of tables.
#[derive(Debug, Subcommand)]
pub(crate) enum Table {
    /// Publish these tables too, beginning with a load of each
    ///
    /// The list is checked first as the source would check it, and nothing is written where the source could not go over to it.
    ///
    /// Exit code 0: the source has gone over, or goes over when it runs. 1: it goes on by the list before. 2: a fault.
    Add(TableChange),

    /// Publish these tables no more, and leave nothing of them behind
    ///
    /// Once the source has gone over: takes them out of the publication, and forgets what groups have done of their topics,
    /// parked events with it. What cannot be taken away yet is told, and the same command does the rest later. A group that still
    /// chooses a table keeps what it has of it. Progress in Redis goes with the topic (--topic).
    ///
    /// Exit code 0: done. 1: something remains. 2: a fault.
    Remove(TableRemove),
}

/// Which tables to add or remove, and how.
#[derive(Debug, Args)]
pub(crate) struct TableChange {
    /// The tables, as schema.table
    #[arg(required = true, value_name = "TABLE")]
    pub(crate) tables: Vec<schemas::TableName>,

    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Do not wait until the source has gone over
    #[arg(long)]
    pub(crate) no_wait: bool,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// Which tables to remove.
#[derive(Debug, Args)]
pub(crate) struct TableRemove {
    #[command(flatten)]
    pub(crate) change: TableChange,

    /// Delete their topics too, with all that stands there
    #[arg(long)]
    pub(crate) topic: bool,
}

/// What to do about loads.
#[derive(Debug, Subcommand)]
pub(crate) enum Snapshot {
    /// Load tables again, a range of one (--from, --to), or single rows (--key, --keys-file)
    ///
    /// Whole tables take the place of all that was published of them (--mode replace: the load begins with a truncate event),
    /// or are laid over it (--mode merge: rows that are gone at the source may stay in targets). A range and single rows are
    /// always laid over; each single row is answered as it is at one place of the stream, also that it is not there.
    ///
    /// Exit code 0: taken up, or waiting for a source to run. 1: the source has not taken it up. 2: a fault.
    Start(SnapshotStart),

    /// Show how far the loads are, and each table
    ///
    /// Exit code 0: no table has failed. 1: one has. 2: a part could not be asked.
    Status(SnapshotStatus),

    /// Read nothing more for a load until it is resumed; by default for all
    ///
    /// Exit code 0: done, or waiting for a source to run. 1: not done, as where the load had ended. 2: a fault.
    Pause(SnapshotSteer),

    /// Let a paused load go on; by default all
    ///
    /// Exit code 0: done, or waiting for a source to run. 1: not done, as where the load had ended. 2: a fault.
    Resume(SnapshotSteer),

    /// End a load where it is
    ///
    /// What it has published stays. After --mode replace the rest of its rows is missing in targets until the table is loaded
    /// again.
    ///
    /// Exit code 0: done, or waiting for a source to run. 1: not done, as where the load had ended. 2: a fault.
    Cancel(SnapshotSteer),
}

/// What to load.
#[derive(Debug, Args)]
pub(crate) struct SnapshotStart {
    /// The tables, as schema.table
    #[arg(required = true, value_name = "TABLE")]
    pub(crate) tables: Vec<schemas::TableName>,

    /// Whether the rows take the place of what was published, or are laid over it
    #[arg(long, value_enum, conflicts_with_all = ["from", "to", "keys", "keys_file"])]
    pub(crate) mode: Option<Mode>,

    /// Only rows from this key on: {"id":42}, or the value alone where the key is one column
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,

    /// Only rows up to this key, which is among them
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,

    /// Only the row with this key; may be given several times
    #[arg(long = "key", value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    pub(crate) keys: Vec<String>,

    /// Only the rows with the keys in this file, one on a line; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to"])]
    pub(crate) keys_file: Option<PathBuf>,

    /// Do not wait until the source has taken it up
    #[arg(long)]
    pub(crate) no_wait: bool,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// How the rows of a load and those that were published before go together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// They take their place
    #[default]
    Replace,
    /// They are laid over them
    Merge,
}

impl From<Mode> for source::command::Mode {
    fn from(mode: Mode) -> source::command::Mode {
        match mode {
            Mode::Replace => source::command::Mode::Replace,
            Mode::Merge => source::command::Mode::Merge,
        }
    }
}

/// How to show loads.
#[derive(Debug, Args)]
pub(crate) struct SnapshotStatus {
    /// Show it again and again, with rows a second and the time that is left, until no load is under way
    #[arg(long)]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// Which load.
#[derive(Debug, Args)]
pub(crate) struct SnapshotSteer {
    /// Its id, as `snapshot start` and `snapshot status` say it
    #[arg(value_name = "LOAD")]
    pub(crate) load: Option<String>,

    /// Do not wait until the source has done it
    #[arg(long)]
    pub(crate) no_wait: bool,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// What to do with the slot.
#[derive(Debug, Subcommand)]
pub(crate) enum Slot {
    /// Show all that is known of it: how far behind, how much room, who reads from it, how long it lasts
    ///
    /// Exit code 0: all is well. 1: it needs a person. 2: it could not be asked.
    Show(Form),

    /// Drop it, so that the source server keeps no more WAL for tributary
    ///
    /// Without --yes it says what it would do. What was not published yet is lost to tributary with the slot, and a source
    /// can never go on under the same prefix. A slot that is read from is refused: stop the source first.
    ///
    /// Exit code 0: done, or shown. 1: refused. 2: it could not be asked.
    Drop(SlotDrop),
}

/// How to drop.
#[derive(Debug, Args)]
pub(crate) struct SlotDrop {
    /// Do it
    #[arg(long)]
    pub(crate) yes: bool,

    /// Drop the publication too
    #[arg(long)]
    pub(crate) publication: bool,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// What to do with topics.
#[derive(Debug, Subcommand)]
pub(crate) enum Topic {
    /// Explain why the partitions of a topic in use are not raised, and what to do instead
    ///
    /// Changes nothing. Exit code 2, since what was asked for is not done.
    Grow(TopicGrow),
}

/// Which topic.
#[derive(Debug, Args)]
pub(crate) struct TopicGrow {
    /// The topic of this table, as schema.table; by default those of all
    #[arg(long, value_name = "TABLE")]
    pub(crate) table: Option<schemas::TableName>,
}

/// What is thought of a parked event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Class {
    /// Will never apply as it is
    Dead,
    /// May apply once other events have been applied
    Undecided,
}

impl Class {
    /// As the target has it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Class::Dead => "dead",
            Class::Undecided => "undecided",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_file_may_be_named_before_or_after_the_command() {
        for line in [["tributary", "-c", "a.toml", "status"], ["tributary", "status", "--config", "a.toml"]] {
            let arguments = Arguments::try_parse_from(line).expect("both are good");
            assert_eq!(arguments.config, PathBuf::from("a.toml"));
        }
    }
}
