"""Admission: the check that every call passes, and the queue for memory."""
