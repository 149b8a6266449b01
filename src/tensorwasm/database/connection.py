"""The type of a connection in a transaction, for those above who only hand it on."""

from __future__ import annotations

from sqlalchemy import Connection

__all__ = ["Connection"]
