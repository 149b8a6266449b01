"""A process that writes to a database until it is killed, and says which writes were acknowledged."""

from __future__ import annotations

import asyncio
import os
import resource
import sys

from sqlalchemy import insert

from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.engine.opening import open_database
from tensorwasm.database.schema import META
from tensorwasm.errors import TensorWasmError

CALLERS = 16


def put(connection, key):
    connection.execute(insert(META).values(key=key, value="v" * 512))


async def write_for_ever(desk, caller):
    number = 0
    while True:
        key = f"{caller}-{number}"
        await desk.write(put, key)
        os.write(1, f"{key}\n".encode())
        number += 1


async def write_until_full(desk, limit_bytes):
    """Write until files may not grow any more, say so, let them grow again and write once more."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
    written = 0
    try:
        while True:
            await desk.write(put, f"before-{written}")
            written += 1
    except TensorWasmError as error:
        os.write(1, f"{error.kind}: {error.message}\n".encode())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await desk.write(put, "after")
    os.write(1, f"{written}\n".encode())


async def main(url, limit_bytes=None):
    desk = DatabaseExecutor(open_database(url))
    if limit_bytes:
        await write_until_full(desk, int(limit_bytes))
    else:
        await asyncio.gather(*(write_for_ever(desk, caller) for caller in range(CALLERS)))
    await desk.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
