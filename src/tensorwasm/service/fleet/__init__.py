"""Processes that serve together: one primary, which writes what lasts, and fronts, which call functions."""
