"""The memory that emulated kernels address: where it comes from, what a launch may touch, and checked access to it."""
