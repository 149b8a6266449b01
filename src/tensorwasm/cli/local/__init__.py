"""Commands that work in this process."""
