"""Loops of unmodified programs as kernels: found in a module's bytes, proved parallel, compiled for host and GPU."""
