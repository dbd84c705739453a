//! Why a command could not do what it was asked for. Printed once, with all causes, by `main`.

use std::path::PathBuf;

use source::command::LISTED_BYTES_MAX;

/// A command ended without an answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Configuration(#[from] service::config::Error),

    #[error("there is no {}: `tributary init` writes a sample, --config names another", .0.display())]
    NoConfiguration(PathBuf),

    #[error("{} has no section [{section}], which `tributary {command}` needs: `tributary init --config sample.toml` shows one", .file.display())]
    NoSection { file: PathBuf, section: &'static str, command: &'static str },

    #[error("no group is called {name}: {} has {known}", .file.display())]
    NoGroup { file: PathBuf, name: String, known: String },

    #[error("{} exists already and is not overwritten: name another file with --config", .0.display())]
    Exists(PathBuf),

    #[error("cannot write {}: check that its folder exists and may be written to", .file.display())]
    Write {
        file: PathBuf,
        #[source]
        cause: std::io::Error,
    },

    #[error("cannot {operation}")]
    System {
        operation: &'static str,
        #[source]
        cause: std::io::Error,
    },

    #[error(transparent)]
    Http(#[from] service::http::Error),

    #[error(transparent)]
    Postgres(Box<postgres::Error>),

    #[error(transparent)]
    Sink(Box<sink::Error>),

    #[error(transparent)]
    Verify(Box<verify::Error>),

    /// Which tables are meant could not be found out.
    #[error(transparent)]
    Source(Box<source::Error>),

    #[error("nothing was published under {0} yet: start `tributary source`, or `tributary run`")]
    NothingPublished(String),

    #[error(
        "{table} is not published under {prefix}: add it to source.tables, or look at `tributary status` for how it is called"
    )]
    NotPublished { table: schemas::TableName, prefix: String },

    #[error("{table} is being loaded already, by {load}: wait for its end, or `tributary snapshot cancel {load}`")]
    Loading { table: schemas::TableName, load: String },

    #[error("{0} are about one table: name one")]
    OneTable(&'static str),

    #[error("cannot use a key of {table}: {fault}")]
    Key { table: schemas::TableName, fault: String },

    #[error(
        "{count} keys of {table} take {asked} bytes, where a source keeps {} of all keys that are not answered yet, {listed} of which are taken: nothing was ordered; order fewer at a time, or the table or a range of it (--from, --to)",
        LISTED_BYTES_MAX
    )]
    ManyKeys { table: schemas::TableName, count: usize, asked: usize, listed: usize },

    #[error("that range is all of {0}: leave out --from and --to, and choose --mode merge to keep what was published")]
    WholeRange(schemas::TableName),

    #[error("--from comes behind --to in the order of the key of {0}, and nothing lies between them: turn them round")]
    NoRange(schemas::TableName),

    #[error("no load is called {load}: under way {}", if .open.is_empty() { "is none" } else { .open })]
    NoLoad { load: String, open: String },

    #[error("several loads are under way, name one of them: {0}")]
    WhichLoad(String),

    #[error("cannot read {}", .file.display())]
    Read {
        file: PathBuf,
        #[source]
        cause: std::io::Error,
    },

    #[error("nothing was changed, since the source could not go over to the list:{}", listed(.0))]
    CannotList(Vec<String>),

    #[error(
        "nothing was changed: {0} has a rule in source.columns or a key in source.keys, and a source ends that finds one for a table which it publishes no more. Take {0} off source.tables by hand and start the source again; once it says that the rule or key is about a table that it does not publish, take that out too and start it again"
    )]
    Ruled(schemas::TableName),

    #[error(
        "the environment variable {0} stands over source.tables of the file: change it there, and start the source again"
    )]
    ListInEnvironment(&'static str),

    #[error("{} is not changed", .file.display())]
    List {
        file: PathBuf,
        #[source]
        cause: Box<crate::table::Refused>,
    },

    #[error(
        "equal keys of {0} can differ in text, so its rows stand still as one and none can be fetched by itself: mend the cause and `tributary dlq retry`, or load the table again"
    )]
    WholeTable(String),

    #[error("nothing is parked at {0}: `tributary dlq list` shows what is")]
    NotParked(String),

    /// A part that runs for long has ended; it was logged as it happened.
    #[error("stopped by an error")]
    Logged,
}

fn listed(faults: &[String]) -> String {
    faults.iter().map(|fault| format!("\n  - {fault}")).collect()
}

impl From<source::Error> for Failure {
    fn from(error: source::Error) -> Failure {
        Failure::Source(Box::new(error))
    }
}

impl From<postgres::Error> for Failure {
    fn from(error: postgres::Error) -> Failure {
        Failure::Postgres(Box::new(error))
    }
}

impl From<sink::Error> for Failure {
    fn from(error: sink::Error) -> Failure {
        Failure::Sink(Box::new(error))
    }
}

impl From<verify::Error> for Failure {
    fn from(error: verify::Error) -> Failure {
        Failure::Verify(Box::new(error))
    }
}
