"""PostgreSQL through psycopg: what a connection is told, and how long anything may take.

Source: libpq, "Parameter Key Words"; PostgreSQL, "Client Connection Defaults".
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import QueuePool

from tensorwasm.errors import InvalidArgs

CONNECT_S: Final = 5
LOCK_MS: Final = 2000
STATEMENT_MS: Final = 30_000

_OPTIONS: Final = frozenset(
    {
        "application_name",
        "channel_binding",
        "gssencmode",
        "host",
        "port",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
    }
)
_SETTINGS: Final = {
    "statement_timeout": STATEMENT_MS,
    "lock_timeout": LOCK_MS,
    "idle_in_transaction_session_timeout": STATEMENT_MS,
    "synchronous_commit": "on",
}


def make_engines(url: URL, readers: int) -> tuple[Engine, Engine]:
    """Return the engine that writes and the one that reads; nothing is connected yet.

    Raises:
        InvalidArgs: an option that is not taken in a URL, or psycopg is not installed.
    """
    if unknown := sorted(set(url.query) - _OPTIONS):
        raise InvalidArgs(f"the URL of the database has options that are not taken: {', '.join(unknown)[:200]}")
    try:
        import psycopg  # noqa: F401, PLC0415 - an extra: its absence is told in so many words
    except ImportError:
        raise InvalidArgs("PostgreSQL needs psycopg: pip install 'tensor-wasm[postgres]'") from None
    place = url.set(drivername="postgresql+psycopg")
    writer = _make_engine(place, 1)
    reader = _make_engine(place, readers).execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return writer, reader


def _make_engine(url: URL, connections: int) -> Engine:
    return create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=CONNECT_S,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args={
            "connect_timeout": CONNECT_S,
            "keepalives_idle": 30,
            "options": " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items()),
        },
    )
