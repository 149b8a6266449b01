"""Streams of work, and what is ordered by them: events, graphs, copies, launches by compiled code."""
