"""Command processor, slot table, queues and counters."""
