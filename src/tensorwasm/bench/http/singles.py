"""Figures of single requests: how long a chunk is on its way, and what the OpenAI route adds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from tensorwasm.bench.figures import Figure, summarise
from tensorwasm.bench.http.client import Client
from tensorwasm.errors import InternalError

STREAMS: Final = 1000
PAIRS: Final = 1000

_STREAM_BAR_MS: Final = 2.0
_GATEWAY_BAR_MS: Final = 0.3
_WAIT_US: Final = 3000
"""What a guest goes on for after its chunk: a stream is of use while the guest still runs."""


def measure_streams(client: Client, function: str, count: int = STREAMS) -> Iterator[Figure]:
    """Yield what a chunk takes from the guest's emit-chunk to the client, in raw streams."""
    taken = sorted(_time_chunk(client, function) for _ in range(count))
    middle, spread, _ = summarise(taken)
    yield Figure("first byte of a stream after emit-chunk, p50", "ms", middle, spread, count)
    p99 = taken[count * 99 // 100]
    yield Figure("first byte of a stream after emit-chunk, p99", "ms", p99, spread, count, bar=_STREAM_BAR_MS)


def _time_chunk(client: Client, function: str) -> float:
    body = {"export": "stamp", "args": [_WAIT_US]}
    answer = client.open_stream(f"/functions/{function}/invoke-stream", body, "application/octet-stream")
    with answer:
        stamp = answer.read(8)
        now_ns = time.time_ns()
        answer.read()
    if len(stamp) != 8:
        raise InternalError(f"a stream had {len(stamp)} bytes instead of 8")
    return (now_ns - int.from_bytes(stamp, "little")) / 1e6


def measure_gateway(client: Client, function: str, model: str, count: int = PAIRS) -> Iterator[Figure]:
    """Yield what the OpenAI route takes beyond an invocation of the same guest, asked for in turns."""
    chat = {"model": model, "messages": [{"role": "user", "content": "Hello?"}]}
    bare, routed = [], []
    for _ in range(count):
        bare.append(_time(client, f"/functions/{function}/invoke", {}))
        routed.append(_time(client, "/v1/chat/completions", chat))
    invoke, _, _ = summarise(bare)
    added, spread, _ = summarise([one - invoke for one in routed])
    yield Figure("a bare invoke of the same guest, p50", "ms", invoke, summarise(bare)[1], count)
    yield Figure("added by the OpenAI route, p50", "ms", added, spread, count, bar=_GATEWAY_BAR_MS)


def _time(client: Client, path: str, body: object) -> float:
    start = time.perf_counter_ns()
    client.ask("POST", path, body)
    return (time.perf_counter_ns() - start) / 1e6
