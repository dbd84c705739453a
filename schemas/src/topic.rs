//! The names of topics: readable where they can be, reversible always, and never the same for two tables.

use crate::TableName;

/// The longest name that Kafka takes.
pub const LENGTH_MAX: usize = 249;

/// The topic of one table: `<prefix>.<schema>.<table>`.
///
/// Kafka allows letters, digits, dot, underscore and hyphen. The dot parts the names and the hyphen starts an escape, so
/// both, and every other byte, become `-` and two hexadecimal digits.
pub fn of_table(prefix: &str, table: &TableName) -> String {
    format!("{prefix}.{}.{}", escaped(&table.schema), escaped(&table.table))
}

/// The topic called `route`, which several tables share: `<prefix>.<route>`.
pub fn of_route(prefix: &str, route: &str) -> String {
    format!("{prefix}.{route}")
}

/// Whether `route` can be the name of a shared topic: Kafka takes it, and it is not kept for the state or for what is set
/// aside. Kafka holds names for the same that differ in dots and underscores alone.
pub fn is_route(route: &str) -> bool {
    let plain = route.replace('_', ".");
    is_valid(route) && plain != "state" && plain != "dlq" && !plain.starts_with("dlq.")
}

/// The topic that holds the source's state.
pub fn of_state(prefix: &str) -> String {
    format!("{prefix}.state")
}

/// The topic that mirrors what `group` has set aside.
pub fn of_dead_letters(prefix: &str, group: &str) -> String {
    format!("{prefix}.dlq.{group}")
}

/// The name of the Kafka consumer group behind the configured group.
pub fn group_id(prefix: &str, group: &str) -> String {
    format!("{prefix}.{group}")
}

/// Whether Kafka takes `name` for a topic.
pub fn is_valid(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && name.len() <= LENGTH_MAX && name != "." && name != ".." && name.chars().all(allowed)
}

fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' {
            out.push(byte as char);
        } else {
            out.push_str(&format!("-{byte:02x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_names_stay_readable_and_others_are_escaped() {
        let topic = |schema: &str, table: &str| of_table("shop", &TableName::new(schema, table));
        assert_eq!(topic("public", "Users_2"), "shop.public.Users_2");
        assert_eq!(topic("a.b", "c-d é"), "shop.a-2eb.c-2dd-20-c3-a9");
    }

    #[test]
    fn a_shared_topic_leaves_the_names_that_are_kept() {
        for (route, good) in
            [("orders", true), ("shop.orders-eu_1", true), ("dlqs", true), ("states", true), ("state.eu", true)]
                .into_iter()
                .chain(["", "state", "dlq", "dlq.rdb", "dlq_rdb", "a b", "é"].map(|route| (route, false)))
        {
            assert_eq!(is_route(route), good, "{route}");
        }
        assert_eq!(of_route("shop", "orders"), "shop.orders");
    }

    proptest! {
        #[test]
        fn two_tables_never_share_a_topic(a in ("[a.\\-_2e]{1,4}", "[a.\\-_2e]{1,4}"), b in ("[a.\\-_2e]{1,4}", "[a.\\-_2e]{1,4}")) {
            let (a, b) = (TableName::new(a.0, a.1), TableName::new(b.0, b.1));
            prop_assert_eq!(a == b, of_table("p", &a) == of_table("p", &b));
            prop_assert!(is_valid(&of_table("p", &a)));
        }
    }
}
