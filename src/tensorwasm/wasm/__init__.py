"""The WebAssembly binary format, read without an engine."""
