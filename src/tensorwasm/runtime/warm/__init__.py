"""Warm sandboxes: instantiated and started before a call asks for one."""
