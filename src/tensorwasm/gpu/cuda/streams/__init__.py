"""Streams of a GPU, events between them and graphs recorded on them."""
