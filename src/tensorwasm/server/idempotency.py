"""The header Idempotency-Key: a request that is made again under it is answered as the first time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from tensorwasm.server.routing import Call
from tensorwasm.service.idempotency import IdempotencyKey, make_key

_SHORT_BYTES: Final = 64 << 10


async def read_key(call: Call, operation: str, *parts: str) -> IdempotencyKey | None:
    """Return the idempotency key of a request; None if it has none.

    Args:
        call: the request.
        operation: what it asks for.
        parts: what it says besides its body.

    Raises:
        InvalidRequest: it is not 1 to 255 printable ASCII characters.
    """
    header = call.headers.get("idempotency-key")
    make = partial(make_key, operation, header, *(part.encode() for part in parts), call.raw)
    return make() if header is None or len(call.raw) < _SHORT_BYTES else await asyncio.to_thread(make)
