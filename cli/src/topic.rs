//! `tributary topic grow`: why the partitions of a topic in use are not raised, and what to do instead.

use std::collections::BTreeSet;

use crate::Outcome;
use crate::args::TopicGrow;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::print;
use crate::tables;

/// Explains, and does nothing.
pub(crate) fn grow(configuration: &Configuration, arguments: &TopicGrow) -> Result<Outcome, Failure> {
    let source = configuration.source("topic grow")?;
    let prefix = &configuration.prefix;
    let named = match &arguments.table {
        Some(table) => Some(vec![table.clone()]),
        None => tables::named(configuration),
    };
    let topics = named.map(|tables| {
        let topics: BTreeSet<String> = tables.iter().map(|table| source.topics.topic_of(prefix, table)).collect();
        topics.into_iter().collect::<Vec<_>>().join(", ")
    });
    // Patterns are not worth a question to the server here.
    let topics = topics.unwrap_or_else(|| format!("those of {prefix}"));
    print(&explanation(prefix, &topics, source.topics.partitions));
    Ok(Outcome::Unknown)
}

fn explanation(prefix: &str, topics: &str, partitions: i32) -> String {
    format!(
        "\
The partitions of a topic in use are not raised: {topics}

A row stands in the partition that its key and the number of partitions give. With another number the next change of a
row would stand in another partition than the ones before it, and two partitions have no order between them: a group
could apply the later change first. The number with which a topic was first used is therefore kept in {prefix}.state, and
is used for ever. Partitions that somebody else adds do no harm: they stay empty, and `tributary doctor` tells of them.

The way to more partitions is another prefix, beside the one that runs:

  1  a copy of the configuration with another prefix, and source.topics.partitions raised (now {partitions})
  2  tributary source and tributary sink with it: they copy the tables again, into targets of their own or, for groups that
     write to PostgreSQL, into new tables
  3  once they have caught up (tributary status, tributary verify), let the readers change over
  4  stop the old source and sinks, then tributary slot drop --publication --yes with the old configuration

Nothing was done."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_is_named_with_the_topics_and_the_number() {
        let text = explanation("shop", "shop.public.users", 4);
        for word in ["shop.public.users", "shop.state", "now 4", "another prefix", "slot drop"] {
            assert!(text.contains(word), "no {word:?} in {text}");
        }
    }
}
