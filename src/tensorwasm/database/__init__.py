"""Persistent state: tables, migrations and queries over SQLite or PostgreSQL. Only this package imports SQLAlchemy."""

from sqlalchemy import Connection

__all__ = ["Connection"]
