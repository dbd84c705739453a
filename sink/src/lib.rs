//! Kafka to the target database and to Redis: applies each event once, in order for every row.
