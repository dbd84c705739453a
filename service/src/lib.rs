//! The process shell: configuration, telemetry, health, shutdown and retry.
