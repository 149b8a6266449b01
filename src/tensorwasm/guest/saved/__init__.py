"""Saved instances: instrumented modules, capture and restore."""
