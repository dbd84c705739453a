//! TLS: what proves a server.
