"""wasmtime: its C API, the engine, modules and their compilation."""
