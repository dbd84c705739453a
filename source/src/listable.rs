//! Whether a list of tables could be gone over to, asked before it is written anywhere: by the same looks that the source takes.
//!
//!     list ─▶ survey ─▶ what follows from the state ─▶ topics ─▶ rights on the publication ─▶ faults, each with its remedy
//!
//! Looks alone, and makes nothing.

use kafka::admin::Admin;
use postgres::quote;
use postgres::tokio_postgres::Client;
use schemas::topic;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::setup::{self, Lacking};
use crate::state::State;
use crate::{Error, relist, start, topics};

/// What stands in the way of the list in `config`. Without a state: of a first start with it.
pub async fn faults(
    client: &Client,
    config: &Config,
    kafka: &kafka::Config,
    prefix: &str,
    state: Option<&State>,
) -> Result<Vec<String>, Error> {
    let survey = setup::survey(client, config).await?;
    if survey.standby {
        return Err(Error::Standby(config.postgres.display()));
    }
    let stop = CancellationToken::new();
    let Some(state) = state else {
        return unready(start::plan(config, kafka, prefix, &survey, &stop).await.map(|_| Vec::new()));
    };
    let change = match relist::look(client, config, prefix, state, &survey).await {
        Ok(look) => look.change,
        Err(error) => return unready(Err(error)),
    };
    // Behind the change the state knows of nothing else any more.
    let mut faults = start::unused(config, &survey);
    if let Some(change) = change {
        let admin = Admin::connect(kafka)?;
        let fresh = topics::fresh(&admin, state, &change.topics()).await?;
        let wanted: Vec<&str> = fresh.iter().map(String::as_str).collect();
        let state_topic = topic::of_state(prefix);
        faults.extend(topics::plan(&admin, kafka, &config.topics, &state_topic, &wanted, &stop).await?.faults);
        if let Some(lacking) = change.publication().filter(|_| config.create) {
            faults.extend(rights(client, config, lacking).await?);
        }
    }
    Ok(faults)
}

/// Faults that are an error to whoever starts.
fn unready(found: Result<Vec<String>, Error>) -> Result<Vec<String>, Error> {
    match found {
        Err(Error::Unready(faults)) => Ok(faults),
        found => found,
    }
}

/// Why we may not complete the publication, though we are to.
async fn rights(client: &Client, config: &Config, lacking: &Lacking) -> Result<Option<String>, Error> {
    let query = "SELECT NOT EXISTS (SELECT FROM pg_publication WHERE pubname = $1 AND NOT pg_has_role(pubowner, 'USAGE'))
                    AND NOT EXISTS (SELECT FROM unnest($2::text[]) AS t (name) JOIN pg_class c ON c.oid = t.name::regclass
                                    WHERE NOT pg_has_role(c.relowner, 'USAGE'))
                    AND ($3 OR has_database_privilege(current_database(), 'CREATE'))";
    let tables: Vec<String> = lacking.tables.iter().map(quote::table).collect();
    let asked = client.query_one(query, &[&config.publication, &tables, &lacking.is_there]).await;
    let failed = |cause| postgres::Error::statement("look at our rights on the publication", cause);
    let may: bool = asked.map_err(failed)?.get(0);
    Ok((!may).then(|| {
        format!(
            "{} may not complete the publication {}: have the owner of it and of the tables run\n      {};",
            config.postgres.user, config.publication, lacking.statement
        )
    }))
}
