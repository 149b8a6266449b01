"""What a guest wrote, in answers: whole, in pieces where it is too long to be encoded at once, or its end."""

import asyncio
import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tensorwasm.errors import GuestExit, InvalidArgs
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.http import results
from tensorwasm.server.http.results import (
    ENDING_BYTES,
    LONG_BYTES,
    PIECE_BYTES,
    chunked_reply,
    end_of_output,
    failure_fields,
    is_long,
    output_of,
)
from tensorwasm.server.http.schemas import Output


def outcome(stdout=b"", stderr=b"", chunks=()):
    return Invocation("go", (), (), 0, stdout, stderr, tuple(chunks), 0.0, None)


def render(given):
    """Return an answer's pieces, and the length that was said before the first of them."""
    pieces = []

    async def give(piece):
        pieces.append(piece)
        return True

    async def run():
        streamed = await chunked_reply(b'{"result":"ok"', given)
        assert (await streamed.send(give)).whole
        return streamed.length

    return pieces, asyncio.run(run())


WRITTEN = st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode))


@given(WRITTEN, WRITTEN, st.lists(WRITTEN, max_size=6), st.integers(1, 40))
def test_pieces_join_to_the_whole_reply_of_the_announced_length(stdout, stderr, chunks, size):
    before, results.PIECE_BYTES = PIECE_BYTES, size
    try:
        pieces, length = render(outcome(stdout, stderr, chunks))
    finally:
        results.PIECE_BYTES = before
    answer = b"".join(pieces)
    assert len(answer) == length
    found = json.loads(answer)
    assert found.pop("result") == "ok"
    written = {"stdout": stdout, "stderr": stderr, "output": b"".join(chunks)}
    wanted = {name: output_of(each) for name, each in written.items() if each}
    assert found == json.loads(results.encode(wanted))


@pytest.mark.parametrize("byte", [b"a", b"\0", b"\xff"])
def test_the_size_of_a_piece_is_bounded(byte):
    pieces, _ = render(outcome(chunks=[byte * 1_000_000]))
    assert max(map(len, pieces)) <= 6 * PIECE_BYTES, "a control character has six in JSON"


def test_all_output_together_decides_whether_a_reply_is_long():
    half = bytes(LONG_BYTES // 2)
    assert not is_long(outcome(half, half))
    assert is_long(outcome(half, half, [b"x"]))


def test_a_disconnect_ends_a_chunked_reply():
    async def run():
        streamed = await chunked_reply(b'{"result":"ok"', outcome(bytes(LONG_BYTES)))
        asked = []

        async def give(piece):
            asked.append(piece)
            return False

        assert not (await streamed.send(give)).whole
        return asked

    assert len(asyncio.run(run())) == 1


class Chunk(bytes):
    """Output that tells when it is freed."""

    freed = 0

    def __del__(self):
        Chunk.freed += 1


def test_sent_output_is_freed_before_the_rest_is_sent():
    async def run():
        given = outcome(chunks=[Chunk(b"\xff" * PIECE_BYTES + b"\xff") for _ in range(8)])
        streamed = await chunked_reply(b'{"result":"ok"', given)
        del given
        seen = []

        async def give(_):
            seen.append(Chunk.freed)
            return True

        await streamed.send(give)
        return seen

    seen = asyncio.run(run())
    assert seen == sorted(seen)
    assert set(range(1, 8)) <= set(seen), "chunk by chunk"


def test_a_round_of_the_loop_encodes_one_piece_of_all_replies(monkeypatch):
    rounds, encoded = 0, []
    encode = results.binascii.b2a_base64

    def watched(*args, **kwargs):
        encoded.append(rounds)
        return encode(*args, **kwargs)

    monkeypatch.setattr(results.binascii, "b2a_base64", watched)

    async def count():
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def run():
        async def give(_):
            return True

        answers = [await chunked_reply(b"{", outcome(chunks=[b"\xff" * PIECE_BYTES * 6])) for _ in range(4)]
        counting = asyncio.ensure_future(count())
        await asyncio.gather(*(each.send(give) for each in answers))
        counting.cancel()

    asyncio.run(run())
    assert len(encoded) == 24
    assert len(set(encoded)) == 24


@given(WRITTEN.filter(bool), st.integers(1, 60))
def test_the_end_of_output_is_a_suffix_of_bounded_length(written, most):
    shown = end_of_output(written, most)
    kept = shown.text.encode() if shown.text is not UNSET else base64.b64decode(shown.base64)
    assert written.endswith(kept)
    assert len(kept) <= most
    assert shown.truncated == (len(written) > most)
    assert len(kept) >= min(most, len(written)) - 3


@given(st.text(alphabet="aé€😀", min_size=1, max_size=60), st.integers(4, 60))
def test_the_end_of_a_text_divides_no_character(text, most):
    assert end_of_output(text.encode(), most).text is not UNSET


def test_only_guest_errors_carry_the_end_of_output():
    found = failure_fields(GuestExit(3, b"x" * (ENDING_BYTES + 1), b""))
    assert found == {"stdout": Output(text="x" * ENDING_BYTES, truncated=True), "exit_code": 3}
    assert failure_fields(InvalidArgs("what")) == {}
