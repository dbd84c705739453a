//! Bytes to and from a server: TCP, and TLS on it.
