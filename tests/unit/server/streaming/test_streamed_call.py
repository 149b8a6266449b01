"""Streams of guests as events and as bytes, and what is told of their end."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.streaming import FUNCTION, FakeInvocations, FakeStream, fake_call
from oracles.sse import read_chunks, read_events
from tensorwasm.errors import Frame, GuestTrap, InvokeTimeout, MissingExport, NotFound, QuotaExceeded
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.http.routing import StreamEnd
from tensorwasm.server.streaming.streamed_call import (
    OUTCOME,
    REASON,
    StreamedCall,
    encode_outcome,
    reads_trailers,
    stream_events,
    stream_raw,
)
from tensorwasm.service.invocations.request import InvocationRequest

TIMEOUT = InvokeTimeout("12 s at 0x1234")
TRAP = GuestTrap("secret text", "unreachable")


async def open_flow(stream, head_s=5.0, quotas=None):
    call = fake_call(FakeInvocations(stream), quotas=quotas)
    return call, await StreamedCall.open(call, FUNCTION, InvocationRequest(), head_s)


def sent(make, script, error=None, exit_code=0, takes=None):
    """Send a stream; return its bytes, its ending, and the request."""

    async def story():
        call, flow = await open_flow(FakeStream(script, error, exit_code), head_s=0.01)
        pieces = []

        async def send(data):
            if takes is not None and len(pieces) >= takes:
                return False
            pieces.append(data)
            return True

        ending = await make(flow).send(send)
        return b"".join(pieces), ending, call

    return asyncio.run(story())


def events(flow):
    return stream_events(flow, f"{FUNCTION}@live")


CHUNKS = st.lists(st.binary(min_size=1, max_size=50), max_size=10)


@given(CHUNKS)
def test_events_carry_every_chunk_and_end_once(chunks):
    body, ending, _ = sent(events, chunks)
    assert read_chunks(body) == chunks
    names = [each.name for each in read_events(body) if not each.name.startswith("chunk")]
    assert names == ["done"]
    assert ending == StreamEnd()


def test_the_last_event_has_the_outcome():
    body, _, call = sent(events, [b"a"])
    last = read_events(body)[-1]
    assert json.loads(last.data) == {"status": "ok", "function_id": FUNCTION, "result": [7]}
    assert call.service.outcomes.get(7, "request-1").status == "done"


@pytest.mark.parametrize(
    ("error", "exit_code", "reason"),
    [(TIMEOUT, 0, "deadline_elapsed"), (TRAP, 0, "wasm_error"), (None, 3, "wasm_error")],
)
def test_a_failure_after_a_chunk_is_an_event(error, exit_code, reason):
    body, ending, call = sent(events, [b"a"], error, exit_code)
    assert [each.name for each in read_events(body)] == ["chunk", "error"]
    told = json.loads(read_events(body)[-1].data)
    assert told["reason"] == reason
    assert "0x1234" not in body.decode()
    assert "secret" not in body.decode()
    assert ending == StreamEnd()
    kept = call.service.outcomes.get(7, "request-1")
    assert (kept.status, kept.reason, kept.message) == ("error", reason, told["message"])


@given(CHUNKS)
def test_raw_bytes_have_nothing_between_them(chunks):
    body, ending, _ = sent(lambda flow: stream_raw(flow, trailers=False), chunks)
    assert body == b"".join(chunks)
    assert ending == StreamEnd(((OUTCOME, "done"),))


@pytest.mark.parametrize("trailers", [False, True])
def test_a_failure_of_raw_bytes_is_a_trailer_or_aborts_the_transfer(trailers):
    body, ending, _ = sent(lambda flow: stream_raw(flow, trailers=trailers), [b"a"], TRAP)
    assert body == b"a"
    assert ending == StreamEnd(((OUTCOME, "error"), (REASON, "wasm_error")), whole=trailers)


@pytest.mark.parametrize("make", [events, lambda flow: stream_raw(flow, trailers=True)])
def test_a_disconnect_ends_the_guest_and_is_recorded(make):
    _, ending, call = sent(make, [b"a", b"b", b"c"], takes=1)
    assert not ending.whole
    assert len(call.service.invocations.left) == 1
    assert call.service.outcomes.get(7, "request-1").reason == "client_gone"


@pytest.mark.parametrize("error", [TIMEOUT, TRAP])
def test_a_failure_before_the_first_chunk_is_an_ordinary_error(error):
    async def story():
        call = fake_call(FakeInvocations(FakeStream([], error)))
        with pytest.raises(type(error)):
            await StreamedCall.open(call, FUNCTION, InvocationRequest())
        assert len(call.service.invocations.left) == 1
        assert call.service.quotas.usage(7).get("streams", 0) == 0
        with pytest.raises(NotFound):
            call.service.outcomes.get(7, "request-1")

    asyncio.run(story())


def test_an_immediate_refusal_is_an_ordinary_error():
    async def story():
        call = fake_call(FakeInvocations(refusal=MissingExport("no such export")))
        with pytest.raises(MissingExport):
            await StreamedCall.open(call, FUNCTION, InvocationRequest())

    asyncio.run(story())


def test_a_quiet_guests_reply_begins_and_is_kept_alive():
    async def story():
        quiet = asyncio.Event()
        call, flow = await open_flow(FakeStream([quiet, b"late"]), head_s=0.001)
        assert call.service.outcomes.get(7, "request-1").status == "running"
        ticks = []
        async with flow:
            async for chunk in flow.chunks(0.001):
                ticks.append(chunk)
                if len(ticks) == 3:
                    quiet.set()
            flow.finish()
        assert ticks[:3] == [None] * 3
        assert [each for each in ticks if each is not None] == [b"late"]

    asyncio.run(story())


def test_open_streams_count_against_the_quota_until_they_end():
    async def story():
        call = fake_call(
            FakeInvocations(FakeStream([b"a"]), FakeStream([b"b"]), FakeStream([b"c"])), quotas={"streams": 1}
        )
        first = await StreamedCall.open(call, FUNCTION, InvocationRequest())
        with pytest.raises(QuotaExceeded, match="streams"):
            await StreamedCall.open(call, FUNCTION, InvocationRequest())
        async with first:
            pass
        async with await StreamedCall.open(call, FUNCTION, InvocationRequest()):
            pass

    asyncio.run(story())


@pytest.mark.parametrize(
    ("te", "expected"),
    [("trailers", True), ("gzip, Trailers;q=1", True), ("gzip", False), ("", False), (None, False)],
)
def test_the_te_header_announces_trailers(te, expected):
    assert reads_trailers(te) is expected


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_truncated_output_is_marked_at_the_end(name):
    whole = Invocation("f", (7,), ("i32",), 0, b"out", b"err", (), 0.0, None)
    flag = f"{name}_truncated"
    told = json.loads(encode_outcome(FUNCTION, whole._replace(**{flag: True})))
    assert told == {
        "status": "ok",
        "function_id": FUNCTION,
        "result": [7],
        "stdout": {"text": "out"},
        "stderr": {"text": "err"},
        flag: True,
    }
    assert flag not in json.loads(encode_outcome(FUNCTION, whole))


def test_an_error_at_the_end_has_the_guests_output():
    error = GuestTrap("secret text", "unreachable")
    error.stdout, error.stderr = b"out", b"\xff"
    error.backtrace = (Frame(1, "f", 84, "a.c", 3), Frame(0, "", 68))
    told = json.loads(read_events(sent(events, [b"a"], error)[0])[-1].data)
    assert (told["stdout"], told["stderr"]) == ({"text": "out"}, {"base64": "/w=="})
    assert told["backtrace"] == [
        {"function": 1, "name": "f", "offset": 84, "file": "a.c", "line": 3},
        {"function": 0, "name": "", "offset": 68},
    ]
