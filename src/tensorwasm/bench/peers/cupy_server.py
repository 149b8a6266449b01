"""The peer of GPU calls over HTTP: an ASGI application with CuPy in its handler, without isolation of any kind.

It does for each request what the guests of the benchmark do: 256 bytes to the GPU, one kernel of one block, and 256
bytes back, through pinned memory. Run it with ``python -m uvicorn tensorwasm.bench.peers.cupy_server:serve``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import Any, Final

Message = MutableMapping[str, Any]

_NUMBERS: Final = 64
_SOURCE: Final = 'extern "C" __global__ void increment(unsigned *numbers) { numbers[threadIdx.x] += 1; }'
_TYPE: Final = (b"content-type", b"application/json")


@cache
def _kernel() -> Callable[[int], int]:
    """Return what increments a number on the GPU; opened once, and used by one thread."""
    import cupy  # noqa: PLC0415 - a peer
    import numpy as np  # noqa: PLC0415 - with what needs it

    launch = cupy.RawModule(code=_SOURCE).get_function("increment")
    stream = cupy.cuda.Stream(non_blocking=True)
    host = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * _NUMBERS), np.uint32, _NUMBERS)

    def increment(number: int) -> int:
        host[-1] = number
        with stream:
            numbers = cupy.empty(_NUMBERS, cupy.uint32)
            numbers.set(host, stream=stream)
            launch((1,), (_NUMBERS,), (numbers,))
            numbers.get(stream=stream, out=host, blocking=False)
        stream.synchronize()
        return int(host[-1])

    return increment


async def serve(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer a request, or an event of the server's life."""
    if scope["type"] == "lifespan":
        for _ in ("startup", "shutdown"):
            event = await receive()
            if event["type"] == "lifespan.startup":
                _kernel()(0)
            await send({"type": f"{event['type']}.complete"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    answer = json.dumps({"result": [_kernel()(json.loads(body)["args"][0])]}).encode()
    headers = [_TYPE, (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
