"""PostgreSQL through psycopg: connection options and time limits.

Source: libpq, "Parameter Key Words"; PostgreSQL, "Client Connection Defaults".
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import QueuePool

from tensorwasm.errors import InvalidArgs

CONNECT_S: Final = 5
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
    "lock_timeout": 2000,  # ms
    "idle_in_transaction_session_timeout": STATEMENT_MS,
    "synchronous_commit": "on",
}


def make_engines(url: URL, readers: int) -> tuple[Engine, Engine]:
    """Return the writing and the reading engine; neither is connected yet.

    Raises:
        InvalidArgs: the URL has an option that is not supported, or psycopg is not installed.
    """
    if unknown := sorted(set(url.query) - _OPTIONS):
        raise InvalidArgs(f"the URL of the database has unsupported options: {', '.join(unknown)[:200]}")
    try:
        import psycopg  # noqa: F401, PLC0415 - an extra: a message says how to install it
    except ImportError:
        raise InvalidArgs("PostgreSQL needs psycopg: pip install 'tensor-wasm[postgres]'") from None
    place = url.set(drivername="postgresql+psycopg")
    reader = _make_engine(place, readers).execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return _make_engine(place, 1), reader


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
