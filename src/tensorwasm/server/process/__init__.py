"""The server's processes: supervisor, template, listening address and startup."""
