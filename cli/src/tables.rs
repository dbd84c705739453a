//! Which tables the configuration means, whoever has to be asked for it.
//!
//!     all are named        nobody is asked
//!     patterns, [source]   the catalog of the source database
//!     patterns alone       the state that the source wrote to Kafka

use schemas::TableName;

use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::state;

/// Every table that is published or taken, each once: those of the source first.
pub(crate) async fn all(configuration: &Configuration) -> Result<Vec<TableName>, Failure> {
    if let Some(named) = named(configuration) {
        return Ok(named);
    }
    let published = match &configuration.source {
        Some(source) => {
            let client = postgres::connect(&source.postgres, "tables").await?;
            source::list(&client, source).await?.0
        }
        None => {
            let state = state::read(configuration).await?;
            state.iter().flat_map(source::State::tables).map(|(_, table)| table.name.clone()).collect()
        }
    };
    let is_meant = |table: &TableName| configuration.selections().any(|selection| selection.chooses(table));
    let mut tables: Vec<TableName> = published.into_iter().filter(is_meant).collect();
    add_named(configuration, &mut tables);
    Ok(tables)
}

/// The same where no pattern is among what is written.
pub(crate) fn named(configuration: &Configuration) -> Option<Vec<TableName>> {
    let mut items = configuration.selections().flat_map(|selection| selection.taking());
    items.all(|item| item.table().is_some()).then(|| {
        let mut tables = Vec::new();
        add_named(configuration, &mut tables);
        tables
    })
}

fn add_named(configuration: &Configuration, tables: &mut Vec<TableName>) {
    for selection in configuration.selections() {
        for table in selection.taking().filter_map(schemas::selection::Item::table) {
            if !selection.excludes(&table) && !tables.contains(&table) {
                tables.push(table);
            }
        }
    }
}
