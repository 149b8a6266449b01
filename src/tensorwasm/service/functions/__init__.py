"""Functions, their versions and aliases, and their modules."""
