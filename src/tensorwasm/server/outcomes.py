"""What came of a call, as routes answer it: its results, and what its guest wrote."""

from __future__ import annotations

from typing import Final

import msgspec

from tensorwasm.errors import GuestExit
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.long_answers import answer_in_pieces, cuts_of, is_long
from tensorwasm.server.routing import Reply, Streamed
from tensorwasm.server.wire.output import Output

_encode: Final = msgspec.json.Encoder().encode


async def answer(called: bytes, outcome: Invocation) -> Reply | Streamed:
    """Return the answer to a call; much output is encoded in pieces.

    Args:
        called: as for `answer_at_once`.
        outcome: what came of the call.

    Raises:
        GuestExit: the guest said that it failed.
    """
    if is_long(outcome):
        return await answer_in_pieces(_head(called, outcome), outcome)
    return answer_at_once(called, outcome)


def answer_at_once(called: bytes, outcome: Invocation) -> Reply:
    """Return the answer to a call whose guest did not write much.

    Args:
        called: the field of the JSON that says what was called: ``"function_id":"..."``.
        outcome: what came of the call.

    Raises:
        GuestExit: the guest said that it failed.
    """
    head, more = _head(called, outcome), b""
    if outcome.stdout or outcome.stderr or outcome.chunks:
        written = {"stdout": outcome.stdout, "stderr": outcome.stderr, "output": b"".join(outcome.chunks)}
        shown = {name: Output.of(each) for name, each in written.items() if each}
        more = b"," + _encode(shown)[1:-1]
    return Reply(b"%b%b}" % (head, more))


def _head(called: bytes, outcome: Invocation) -> bytes:
    """Return an answer's JSON but for what the guest wrote. The results are JSON already, with every digit."""
    if outcome.exit_code:
        raise GuestExit(outcome.exit_code, outcome.stdout, outcome.stderr)
    result = outcome.to_json().encode() if outcome.result_types else b'"ok"'
    return b'{%b,"result":%b%b' % (called, result, cuts_of(outcome))
