//! PostgreSQL to Kafka: reads the replication stream and publishes each change once.
