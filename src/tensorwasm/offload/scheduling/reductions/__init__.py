"""Reductions in parts, where their result does not depend on order."""
