"""Answers that come while a guest still runs: how they are framed, sent and ended."""
