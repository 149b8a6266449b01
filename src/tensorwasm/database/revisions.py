"""The revision of tenants and tokens: a number that each change takes, by which other processes see what changed."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Connection, Text, cast, insert, select, update
from sqlalchemy.exc import IntegrityError

from tensorwasm.database.schema import META

REVISION_KEY: Final = "identity_revision"


def read_revision(connection: Connection) -> int:
    """Return the last number that was taken; 0 if none was."""
    found = connection.execute(select(META.c.value).where(META.c.key == REVISION_KEY)).scalar()
    return 0 if found is None else int(found)


def take_revision(connection: Connection) -> int:
    """Return the next number, for the rows that this transaction changes.

    The row is locked until the commit, so whoever sees a number sees all that was changed under smaller ones, and two
    transactions that begin with this do the rest one after the other.
    """
    following = cast(cast(META.c.value, BigInteger) + 1, Text)
    take = update(META).where(META.c.key == REVISION_KEY).values(value=following)
    if not connection.execute(take).rowcount and not _begin(connection):
        connection.execute(take)
    return read_revision(connection)


def _begin(connection: Connection) -> bool:
    """Take the first number, and return whether nobody else just did."""
    try:
        with connection.begin_nested():
            connection.execute(insert(META).values(key=REVISION_KEY, value="1"))
    except IntegrityError:
        return False
    return True
