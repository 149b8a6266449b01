"""The benchmark ``where``: where the time of a request goes, for each kind of call, as the server itself says.

One client makes one request after the other, over one connection, and asks for `Server-Timing` with each. What it
waited beyond the server's own time was spent outside: in the client, in the kernel's sockets, and in the server before
it had read the request and behind its reply.
"""

from __future__ import annotations

import socket
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.bench.figures import Figure, Report, p99, summarise
from tensorwasm.bench.harness import scratch_folder
from tensorwasm.bench.service.serving import UNLIMITED, RunningService, ServiceClient, render, serving, tenant_headers
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Runtime

SPANS: Final = ("queue", "gate", "load", "sandbox", "dispatch", "first", "guest", "kernel", "answer")
"""Spans of a request in their usual order; see `tensorwasm.telemetry.timeline`."""

OUTSIDE: Final = "outside"
TOTAL: Final = "total"

_COLOURS: Final = (
    *("#8da0cb", "#fc8d62", "#b3b3b3", "#a6d854", "#ffd92f"),
    *("#e5c494", "#66c2a5", "#1b9e77", "#e78ac3", "#dddddd"),
)
_WARM: Final = 30
_TIMEOUT_S: Final = 60.0
_STAMP_US: Final = 1000
"""How long a guest runs on that the event loop does not run itself."""


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A kind of call: its path, its body, and headers besides the usual ones."""

    kind: str
    path: str
    body: object
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TimesReport(Report):
    """A report of spans by kind: a table of kinds and spans, and a stacked bar for each kind.

    Attributes:
        times: microseconds of each request, by kind and by span.
    """

    times: Mapping[str, Mapping[str, Sequence[float]]]

    def to_text(self) -> str:
        """Return a table with a row for each kind, and p50 and p99 of each span in microseconds."""
        spans = self._spans()
        rows = [("kind", "n", *spans)]
        for kind, times in self.times.items():
            cells = (
                f"{summarise(times[span])[0]:.0f} / {p99(times[span]):.0f}" if span in times else "" for span in spans
            )
            rows.append((kind, str(len(times[TOTAL])), *cells))
        return self._table(rows).replace("\n\n", ": p50 / p99 in µs\n\n", 1)

    def draw(self, canvas: Any) -> None:
        """Draw the share of each span in a kind's time, by their medians, one behind the other."""
        axes = self._rows_on(canvas, len(self.times))
        parts = {
            kind: {span: summarise(times[span])[0] for span in (*SPANS, OUTSIDE) if span in times}
            for kind, times in self.times.items()
        }
        whole = {kind: sum(medians.values()) for kind, medians in parts.items()}
        names = [f"{kind}: {whole[kind]:.0f} µs" for kind in parts]
        ends = [0.0] * len(names)
        for span, colour in zip((*SPANS, OUTSIDE), _COLOURS, strict=True):
            shares = [100 * medians.get(span, 0.0) / whole[kind] for kind, medians in parts.items()]
            if any(shares):
                axes.barh(names, shares, left=ends, color=colour, label=span)
            ends = [end + share for end, share in zip(ends, shares, strict=True)]
        axes.set_xlabel("% of the time from the request to its answer's head (medians)")
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))

    def _spans(self) -> list[str]:
        found = {span for times in self.times.values() for span in times}
        return [span for span in (*SPANS, TOTAL, OUTSIDE) if span in found]


def measure_where(choice: str = "auto", *, count: int = 500) -> TimesReport:
    """Measure so many requests of each kind of call: inline, on the reactor, with a device, streamed, in a session."""
    with Runtime(device=choice) as runtime:
        device = runtime.device
    chosen = f"cuda:{device.ordinal}" if device.kind == "cuda" else "emulator"
    times: dict[str, dict[str, list[float]]] = {}
    with scratch_folder() as folder, serving(folder, {"TENSOR_WASM_DEVICE": chosen}) as service:
        with service.client() as client:
            client.ask("PATCH", "/tenants/1", {"quotas": UNLIMITED})
            client.wait_until_ready()
            calls = [*_prepare(client)]
        for call in calls:
            times[call.kind] = _measure(service, call, count)
    return TimesReport("where", device.name, tuple(_figures(times)), times)


def _prepare(client: ServiceClient) -> Iterator[TimedCall]:
    """Deploy guests, and yield the calls of them."""
    add = client.deploy("add")
    sum_, stamp = {"export": "add", "args": [2, 3]}, {"export": "stamp", "args": [_STAMP_US]}
    yield TimedCall("CPU, inline", f"/functions/{add}/invoke", sum_, {})
    stream = client.deploy("stream")
    yield TimedCall(f"CPU, reactor ({_STAMP_US} µs)", f"/functions/{stream}/invoke", stamp, {})
    increment = client.deploy("increment", grants=["cuda"])
    yield TimedCall("GPU", f"/functions/{increment}/invoke", {"export": "increment", "args": [41]}, {})
    events = {"accept": "text/event-stream"}
    yield TimedCall("stream, to its head", f"/functions/{stream}/invoke-stream", stamp, events)
    session = client.ask("POST", "/sessions", {"function": add})["id"]
    yield TimedCall("session", f"/sessions/{session}/invoke", sum_, {})


def _measure(service: RunningService, call: TimedCall, count: int) -> dict[str, list[float]]:
    """Return microseconds of each span; a span that only some requests have took none in the others."""
    headers = {**tenant_headers(service.token, 1), **call.headers, "x-tensorwasm-timing": "1"}
    request = render("POST", call.path, headers, call.body)
    found = []
    with closing(TimedConnection(service.url)) as connection:
        for _ in range(_WARM + count):
            wall_us, times = connection.ask(request)
            found.append({**times, OUTSIDE: max(0.0, wall_us - times[TOTAL])})
    del found[:_WARM]
    names = {name for times in found for name in times}
    return {name: [times.get(name, 0.0) for times in found] for name in names}


def _figures(times: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[Figure]:
    for kind, spans in times.items():
        for span in (*SPANS, TOTAL, OUTSIDE):
            if span in spans:
                middle, spread, count = summarise(spans[span])
                yield Figure(f"{kind}: {span}, p50", "us", middle, spread, count)
                yield Figure(f"{kind}: {span}, p99", "us", p99(spans[span]), spread, count)


class TimedConnection:
    """Makes requests one after the other, and takes the time until the head of each answer. Close it."""

    def __init__(self, url: str) -> None:
        """Connect."""
        place = urllib.parse.urlsplit(url)
        self._socket = socket.create_connection((place.hostname or "", place.port or 80), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[float, dict[str, float]]:
        """Return the microseconds until the answer's head had come, and those of the server by span.

        Raises:
            InternalError: the answer is no success, or does not say where its time went.
        """
        began_ns = time.perf_counter_ns()
        self._socket.sendall(request)
        data = self._receive(b"")
        while (end := data.find(b"\r\n\r\n")) < 0:
            data = self._receive(data)
        wall_us = (time.perf_counter_ns() - began_ns) / 1e3
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if " 200 " not in first or "server-timing" not in fields:
            raise InternalError(f"a request was answered with {first!r} and {data[end:][:200]!r}")
        body = data[end + 4 :]
        if "content-length" in fields:
            while len(body) < int(fields["content-length"]):
                body = self._receive(body)
        else:
            while not body.endswith(b"0\r\n\r\n"):
                body = self._receive(body)
        return wall_us, read_timing(fields["server-timing"])

    def _receive(self, data: bytes) -> bytes:
        more = self._socket.recv(1 << 16)
        if not more:
            raise InternalError("the service closed the connection")
        return data + more

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def read_timing(text: str) -> dict[str, float]:
    """Return the microseconds of each entry of a header ``Server-Timing`` as this server writes it."""
    entries = (entry.split(";dur=") for entry in text.split(", "))
    return {name: float(ms) * 1e3 for name, ms in entries}
