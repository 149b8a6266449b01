"""The benchmark ``offload``: programs whose loops run elsewhere, beside wasmtime and a native compiler."""
