//! Connections to Kafka: settings, topics, the transactional publisher, reading a topic whole.
