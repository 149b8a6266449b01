"""The memory layout that compiled host functions share with a session."""
