"""Sandboxes: one store with one instance of one module, and the ways to run it."""
