"""What is kept: keys, signed files, and one content-addressed store for modules, code, kernels and snapshots."""
