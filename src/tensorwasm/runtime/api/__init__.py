"""The Python API: `Runtime` and `Function`."""
