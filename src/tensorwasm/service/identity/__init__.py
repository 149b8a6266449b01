"""Tenants and tokens."""
