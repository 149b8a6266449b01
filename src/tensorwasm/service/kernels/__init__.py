"""The registry of signed kernels."""
