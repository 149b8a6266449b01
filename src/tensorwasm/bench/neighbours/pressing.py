"""Load from a process of its own, whose clients stay behind the service and its neighbour for a processor."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Final

from tensorwasm.bench.http.caller import Broken, connect
from tensorwasm.bench.neighbours.loads import LOADS, Load, Scene, turns
from tensorwasm.errors import InternalError

_NICE: Final = 19
_BEGIN_S: Final = 0.5
_END_S: Final = 180.0
_PAUSE_S: Final = 0.05
"""What a client waits that was refused or that cannot connect."""

Answers = Counter[int]
"""How often each status was answered; 0 stands for no answer."""


class Pressing:
    """A load that is going on.

    Attributes:
        answers: what it was answered; there once it is over.
    """

    def __init__(self) -> None:
        self.answers: Answers = Counter()


@contextlib.contextmanager
def pressing(load: Load, scene: Scene, url: str) -> Iterator[Pressing]:
    """Put a load on a service until the end of the block.

    Args:
        load: one of `LOADS`.
        scene: what was prepared for it.
        url: of the service.

    Raises:
        InternalError: its process ended early.
    """
    spawn, found = multiprocessing.get_context("spawn"), Pressing()
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_press, args=(LOADS.index(load), scene, url, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        _receive(ours)  # all have asked
        yield found
        ours.send(None)
        found.answers = Counter(_receive(ours))
    finally:
        ours.close()
        process.terminate()
        process.join()


def _receive(pipe: Connection) -> dict[int, int]:
    if not pipe.poll(_END_S):
        raise InternalError("a load does not come to an end")
    try:
        answered: dict[int, int] = pipe.recv()
    except EOFError:
        raise InternalError("a load's process has ended") from None
    return answered


def _press(number: int, scene: Scene, url: str, pipe: Connection) -> None:
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    asyncio.run(_ask_on_and_on(LOADS[number], scene, url, pipe))


async def _ask_on_and_on(load: Load, scene: Scene, url: str, pipe: Connection) -> None:
    parts, answers = urllib.parse.urlsplit(url), Counter[int]()
    address = parts.hostname or "127.0.0.1", parts.port or 80

    async def work(index: int) -> None:
        caller = None
        for turn in turns(index, load.clients):
            try:
                if caller is None:
                    caller = await connect(*address)
                statuses = await load.step(caller, scene, turn)
            except Broken:
                caller, statuses = None, (0,)
            answers.update(statuses)
            if not set(statuses) <= load.expected:
                await asyncio.sleep(_PAUSE_S)

    tasks = [asyncio.ensure_future(work(index)) for index in range(load.clients)]
    await asyncio.sleep(_BEGIN_S)  # until all of them have asked; making what they send may take longer
    pipe.send({})
    await asyncio.wait((asyncio.ensure_future(asyncio.to_thread(pipe.recv)), *tasks), return_when="FIRST_COMPLETED")
    pipe.send(dict(answers))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
