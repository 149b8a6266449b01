"""Devices: the port, the emulator, CUDA, and the session that guards them."""
