"""Replies that are sent while a guest still runs: their framing, transfer and ending."""
