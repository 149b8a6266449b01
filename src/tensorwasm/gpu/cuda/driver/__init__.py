"""The driver API: its entry points, its result codes, its releases, its contexts, and MPS."""
