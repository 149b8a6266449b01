"""Deployment: a module becomes code that can be instantiated, compiled once."""
