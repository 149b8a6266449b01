"""Files of snapshots as they are sent."""

import asyncio
import os

import pytest

from tensorwasm.server.routes.snapshots import PIECE_BYTES, _file


@pytest.mark.parametrize("takes", [None, 2])
def test_a_file_is_read_as_it_is_taken_in_small_pieces(takes):
    """Clients that took nothing held a MiB each."""
    data = os.urandom(10 * PIECE_BYTES + 1)
    pieces = []

    async def send(piece):
        if len(pieces) == takes:
            return False
        pieces.append(piece)
        return True

    end = asyncio.run(_file(memoryview(data)).send(send))
    assert end.whole == (takes is None)
    assert b"".join(pieces) == data[: len(data) if takes is None else takes * PIECE_BYTES]
    assert max(map(len, pieces)) <= 128 << 10
