"""Snapshots as files: a saved instance in a sealed file, whole or only what differs from a parent's.

`file.write_snapshot` and `file.SnapshotFile` are each other's inverse.
"""
