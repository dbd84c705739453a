//! Which servers of several will do: libpq's `target_session_attrs`, as far as it is of use to us. Pure.

use std::str::FromStr;

/// What a server must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetSession {
    /// Whatever answers.
    #[default]
    Any,
    /// One that takes writes.
    ReadWrite,
    /// One that is not in recovery.
    Primary,
}

impl TargetSession {
    /// As it is written in a url.
    pub fn as_str(self) -> &'static str {
        match self {
            TargetSession::Any => "any",
            TargetSession::ReadWrite => "read-write",
            TargetSession::Primary => "primary",
        }
    }

    /// Why a server will not do; none if it will.
    pub fn objection(self, found: Found) -> Option<&'static str> {
        match self {
            TargetSession::Any => None,
            TargetSession::ReadWrite | TargetSession::Primary if found.is_standby => Some("a standby"),
            TargetSession::ReadWrite if found.is_read_only => {
                Some("read-only (default_transaction_read_only is on for this role, database or server)")
            }
            TargetSession::ReadWrite | TargetSession::Primary => None,
        }
    }
}

/// What a server says of itself at a login; from 14 on it does so unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// `in_hot_standby`
    pub is_standby: bool,
    /// `default_transaction_read_only`
    pub is_read_only: bool,
}

impl Found {
    /// The settings by which it does.
    pub const SETTINGS: [&'static str; 2] = ["in_hot_standby", "default_transaction_read_only"];

    /// Takes what the server reports about one setting.
    pub fn note(&mut self, name: &str, value: &str) {
        match name {
            "in_hot_standby" => self.is_standby = value == "on",
            "default_transaction_read_only" => self.is_read_only = value == "on",
            _ => {}
        }
    }
}

/// The text names nothing that we support.
#[derive(Debug, thiserror::Error)]
#[error("target_session_attrs is any, read-write or primary")]
pub struct UnknownTargetSession;

impl FromStr for TargetSession {
    type Err = UnknownTargetSession;

    fn from_str(text: &str) -> Result<TargetSession, UnknownTargetSession> {
        let all = [TargetSession::Any, TargetSession::ReadWrite, TargetSession::Primary];
        all.into_iter().find(|known| known.as_str() == text).ok_or(UnknownTargetSession)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_does_or_does_not() {
        let standby = Found { is_standby: true, is_read_only: false };
        let read_only = Found { is_standby: false, is_read_only: true };
        let primary = Found::default();
        for (wanted, does) in [
            (TargetSession::Any, [true, true, true]),
            (TargetSession::ReadWrite, [false, false, true]),
            (TargetSession::Primary, [false, true, true]),
        ] {
            let found = [standby, read_only, primary].map(|found| wanted.objection(found).is_none());
            assert_eq!(found, does, "{}", wanted.as_str());
        }
    }

    #[test]
    fn a_server_tells_what_it_is_by_two_settings() {
        let mut found = Found::default();
        for (name, value) in [("server_version", "15.18"), ("in_hot_standby", "on"), ("is_superuser", "on")] {
            found.note(name, value);
        }
        assert_eq!(found, Found { is_standby: true, is_read_only: false });
        found.note("default_transaction_read_only", "on");
        found.note("in_hot_standby", "off");
        assert_eq!(found, Found { is_standby: false, is_read_only: true });
    }
}
