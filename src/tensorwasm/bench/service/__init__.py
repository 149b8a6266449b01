"""The service over HTTP: throughput, neighbours, and endurance with faults."""
