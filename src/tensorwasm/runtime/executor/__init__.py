"""Executors: the port behind which requests run, and the executor of this process."""
