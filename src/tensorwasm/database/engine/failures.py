"""Translation of the drivers' errors by tables of codes. Statements are logged, their values never."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
    SQLAlchemyError,
    StatementError,
    TimeoutError,  # noqa: A004 - SQLAlchemy's own: no connection of the pool came free
)

from tensorwasm.errors import Conflict, DatabaseUnavailable, InternalError

_log = logging.getLogger(__name__)

_SQLITE: Final[Mapping[int, str]] = {
    5: "the database is locked by another process",
    6: "the database is locked by another process",
    7: "the database has no memory",
    8: "the database cannot be written",
    10: "the disk of the database fails",
    11: "the database file is damaged: restore it from a backup",
    13: "the disk of the database is full",
    14: "the database file cannot be opened",
    15: "the database is locked by another process",
    26: "the database file is damaged, or is not a database: restore it from a backup",
}
"""By primary result code. Source: SQLite, "Result and Error Codes"."""

_POSTGRESQL: Final[Mapping[str, str]] = {
    "08": "the database does not answer",
    "25006": "the database cannot be written",
    "28": "the database refuses the credentials",
    "3D": "there is no such database on the server",
    "40": "the database is held up by another transaction",
    "53": "the database has no room, or no connection left",
    "55P03": "the database is locked by another process",
    "57": "the database went down, or took too long",
    "58": "the disk of the database fails",
    "XX001": "the database is damaged: restore it from a backup",
    "XX002": "the database is damaged: restore it from a backup",
}
"""By SQLSTATE, or its class. Source: PostgreSQL, "Error Codes"."""

_CONFLICTS: Final = frozenset({787, 1555, 2067, 2579, "23503", "23505"})
"""Violated foreign and unique keys, which callers can cause; a missing value or failed check is a bug here."""


def translate(error: Exception) -> Exception:
    """Return the error of this package, with a fixed message, for one of SQLAlchemy; the details are logged.

    Returns:
        `DatabaseUnavailable`, `Conflict` for a violated key, `InternalError` for other errors of SQLAlchemy; an error
        from elsewhere unchanged.
    """
    if not isinstance(error, SQLAlchemyError):
        return error
    if isinstance(error, IntegrityError) and _code(error) in _CONFLICTS:
        return Conflict("this conflicts with an existing row")
    reason = _unavailable_reason(error)
    _log.log(logging.WARNING if reason else logging.ERROR, "%s: %s", reason or "a statement failed", _describe(error))
    return DatabaseUnavailable(reason) if reason else InternalError("the database refused a statement")


def breaks_transaction(error: Exception) -> bool:
    """Return whether nothing of the transaction in which an error occurred can be relied on."""
    own = IntegrityError | DataError | ProgrammingError | NotSupportedError
    return isinstance(error, DBAPIError) and not isinstance(error, own)


def is_deadlock(error: Exception) -> bool:
    """Return whether the server rolled a transaction back so that another can go on: SQLSTATE class 40."""
    return isinstance(error, DBAPIError) and str(_code(error)).startswith("40")


def _unavailable_reason(error: SQLAlchemyError) -> str | None:
    """Return why the database cannot be used; None if the statement is to blame."""
    if isinstance(error, TimeoutError):
        return "the database is busy"
    if not isinstance(error, DBAPIError):
        return None
    code = _code(error)
    if isinstance(code, int):
        return _SQLITE.get(code & 0xFF)
    if code is not None:
        return _POSTGRESQL.get(code) or _POSTGRESQL.get(code[:2])
    return "the database does not answer" if breaks_transaction(error) else None


def _code(error: DBAPIError) -> int | str | None:
    """Return SQLite's extended result code, or PostgreSQL's SQLSTATE."""
    found: int | str | None = getattr(error.orig, "sqlite_errorcode", None) or getattr(error.orig, "sqlstate", None)
    return found


def _describe(error: SQLAlchemyError) -> str:
    """Return what may be logged: class names, codes and the statement with its placeholders."""
    parts = [type(error).__name__]
    if isinstance(error, StatementError):
        origin = error.orig
        codes = (str(getattr(origin, name, "") or "") for name in ("sqlite_errorname", "sqlstate"))
        parts += [type(origin).__name__, *codes, " ".join((error.statement or "").split())[:500]]
    return " ".join(filter(None, parts))
