"""The worker process: the side of the protocol that makes the calls."""
