"""Live instances and their snapshots: in memory, in files and in the artifact store."""
