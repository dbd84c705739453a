//! Connections to PostgreSQL: TLS, replication mode, pinned settings, quoting, SQLSTATE.
