"""Worker processes: what touches a device runs in a process of its own, because a process is the fault domain."""
