"""Compilation of guarded kernels for workers, in processes of its own on the parent's side."""
