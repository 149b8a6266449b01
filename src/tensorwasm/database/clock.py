"""`unix_ms`: the database's own clock, which is one for all servers whatever theirs say."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class unix_ms(FunctionElement[int]):  # noqa: N801 - SQL functions are written so
    """Milliseconds since 1970 as the database has them now, not as they were when the transaction began."""

    type = BigInteger()
    inherit_cache = True
    name = "unix_ms"


@compiles(unix_ms)
def _registered(_element: unix_ms, _compiler: Any, **_more: Any) -> str:
    return "unix_ms()"  # SQLite's connections have it, made in Python: the file's clock is this machine's


@compiles(unix_ms, "postgresql")
def _postgresql(_element: unix_ms, _compiler: Any, **_more: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
