"""The server's processes: supervisor, child, listening address, startup and memory."""
