//! The settings that every session of ours has, so that the text of a value is the same everywhere and always.

/// What is pinned in the startup packet of every connection: source, chunks, target and verification alike.
///
/// They stand above what a role, a database or the server's own file carries. All of them are known to 14 and later;
/// what only newer servers know is in [`SINCE`].
pub const PINNED: &[(&str, &str)] = &[
    // The text of values.
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "iso_8601"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("lc_monetary", "C"),
    ("xmloption", "content"),
    ("search_path", "pg_catalog"),
    ("client_encoding", "UTF8"),
    // A role without it would turn the NULLs of an array into texts on the way in.
    ("array_nulls", "on"),
    ("standard_conforming_strings", "on"),
    // A table whose policies hide rows is refused instead of read in part.
    ("row_security", "off"),
    // Time-outs that a role may carry.
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
];

/// Settings that are an error in the startup packet of an older server: (first major version, name, value).
/// They are set right after the connection stands.
pub const SINCE: &[(u32, &str, &str)] = &[(17, "transaction_timeout", "0")];

/// [`PINNED`] as the startup packet's `options`: `-c name=value`, spaces and backslashes escaped.
pub fn options() -> String {
    let option = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace(' ', "\\ ");
        format!("-c {name}={value}")
    };
    PINNED.iter().map(option).collect::<Vec<_>>().join(" ")
}

/// The statements that [`SINCE`] asks for on a server of `major` version; empty if there are none.
pub fn statements(major: u32) -> String {
    let newer = SINCE.iter().filter(|(since, ..)| *since <= major);
    newer.map(|(_, name, value)| format!("SET {name} = {value};")).collect()
}

/// How a session of ours is called in `pg_stat_activity`.
pub fn application_name(purpose: &str) -> String {
    format!("tributary {purpose}")
}

/// The major version in a server's own `server_version`, such as `15.18 (Debian 15.18-1)` or `19beta1`.
pub fn major(server_version: &str) -> Option<u32> {
    let digits = server_version.find(|c: char| !c.is_ascii_digit()).unwrap_or(server_version.len());
    server_version[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_server_splitting_them() {
        assert!(options().starts_with(r"-c DateStyle=ISO,\ MDY -c IntervalStyle=iso_8601 -c "), "{}", options());
        assert_eq!(options().matches("-c ").count(), PINNED.len());
    }

    #[test]
    fn a_setting_is_asked_only_of_servers_that_know_it() {
        assert_eq!(statements(16), "");
        assert_eq!(statements(17), "SET transaction_timeout = 0;");
        assert_eq!(major("15.18 (Debian 15.18-1)"), Some(15));
        assert_eq!(major("19beta1"), Some(19));
        assert_eq!(major("EnterpriseDB"), None);
    }
}
