"""NVIDIA GPUs through the driver API."""
