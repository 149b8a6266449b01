"""Sandboxes: wasmtime lives here and nowhere else."""
