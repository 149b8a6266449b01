"""A process that works on a store on disk, the same for each seed, and says after each step that it is done."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tensorwasm.artifacts.backends.disk import DiskBackend
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.errors import TensorWasmError

POOL = tuple(bytes([n]) * 3000 for n in range(4))
SECOND_NS = 10**9


def steps(seed):
    """Yield what is done, without end: a method's name and its arguments, but for the tenant."""
    pick = random.Random(seed)
    while True:
        data, name = pick.choice(POOL), pick.choice("ab")
        digest = blake3(data)
        yield pick.choice(
            [
                *[("put", "module", data)] * 2,
                ("bind", name, digest),
                ("unbind", name),
                ("delete", digest),
                ("collect",),
            ]
        )


def follow(model, count, seed):
    """Do the first steps to a model."""
    for number, (action, *arguments) in zip(range(count), steps(seed), strict=False):
        now_ns = number * SECOND_NS
        extra = {"put": [(), now_ns], "collect": [now_ns]}.get(action, [])
        getattr(model, action)(*arguments, *extra)
    return model


def work(folder, seed):
    """Do all steps to a store, until somebody ends the process."""
    clock = [0]
    store = ContentStore(DiskBackend(folder), now_ns=lambda: clock[0])
    for number, (action, *arguments) in enumerate(steps(seed)):
        clock[0] = number * SECOND_NS
        try:
            if action == "collect":
                store.collect(0)
            else:
                getattr(store, action)("t", *arguments)
        except TensorWasmError:  # refused, as the model refuses it
            pass
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
