"""Commands that talk to a server."""
