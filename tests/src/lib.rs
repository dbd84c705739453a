//! Real servers, processes, workloads and the oracle for the end-to-end tests.
