"""Snapshots of instances: kept by name, handed out as files, restored."""
