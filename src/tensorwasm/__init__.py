"""TensorWasm: a serverless WebAssembly runtime with a GPU in reach."""
