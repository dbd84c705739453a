//! Why the target does not take an event: told with and without the row's values.

use postgres::sqlstate::Severity;

use crate::error::of_sql;

/// Why the target does not take an event.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The server's own reason.
    #[error("{}", without_values(.0))]
    Server(sqlx::Error),
    /// An update of some columns, of a row that is not there.
    #[error("the row is not there, and the event does not bring all of its columns")]
    NoRow,
    /// The target's table is not made for the event.
    #[error("{0}")]
    Unfit(String),
}

impl Refused {
    /// Where it leads.
    pub(crate) fn severity(&self) -> Severity {
        match self {
            Refused::Server(cause) => of_sql(cause),
            Refused::NoRow | Refused::Unfit(_) => Severity::Undecided,
        }
    }

    /// The server's own words with all that they quote, for those who may see the row.
    pub(crate) fn in_full(&self) -> String {
        let Refused::Server(cause) = self else { return self.to_string() };
        let Some(error) = cause.as_database_error() else { return cause.to_string() };
        let detail = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().and_then(|error| error.detail());
        match detail {
            Some(detail) => format!("{}: {detail}", error.message()),
            None => error.message().to_owned(),
        }
    }

    /// The server's code.
    pub(crate) fn sqlstate(&self) -> Option<String> {
        match self {
            Refused::Server(cause) => cause.as_database_error().and_then(|error| error.code()).map(Into::into),
            Refused::NoRow | Refused::Unfit(_) => None,
        }
    }
}

/// What the server says, without values of the row: messages go to logs, and rows must not. A violated constraint is told
/// in its message without them; other messages quote what they do not like.
fn without_values(cause: &sqlx::Error) -> String {
    let Some(error) = cause.as_database_error() else { return cause.to_string() };
    let code = error.code().unwrap_or_default();
    if code.starts_with("23") {
        return error.message().to_owned();
    }
    format!(
        "the target refuses it with SQLSTATE {code}; its own words stand in its log, and in tributary.parked where it was set aside"
    )
}
