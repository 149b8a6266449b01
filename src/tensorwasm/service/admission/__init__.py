"""Admission: the gate that every call passes, and the queue for memory behind it."""
