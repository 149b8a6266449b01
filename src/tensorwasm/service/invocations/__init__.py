"""Invocations: calls of functions, in this process or in a worker process."""
