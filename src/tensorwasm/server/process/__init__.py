"""The server's processes: supervisor, child, listening address and startup."""
