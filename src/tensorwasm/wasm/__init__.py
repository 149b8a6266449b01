"""The WebAssembly binary format, read, edited and written without an engine."""
