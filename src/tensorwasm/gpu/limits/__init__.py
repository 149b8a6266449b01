"""Limits that sessions share: accounts of device memory, the launch gate, and credits for the driver's queues."""
