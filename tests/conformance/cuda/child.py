"""Programs in a process of their own, for what ends a context or the process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import sys, time
from tensorwasm.errors import *
from tensorwasm.gpu.cuda.opening import open_cuda
from tensorwasm.ptx.parser import parse
from tensorwasm.values import Deadline, LaunchConfig
device = open_cuda()
stream = device.open_stream()
address = device.allocate(64)
one, none = LaunchConfig((1, 1, 1), (1, 1, 1)), Deadline()

def run(text, entry, deadline=none):
    loaded = device.load(parse(text), none)
    device.launch(loaded, entry, one, [address.to_bytes(8, "little")], (), stream, deadline)
    device.synchronize(stream, deadline)

def expect(error, call):
    try:
        call()
    except error as caught:
        print(type(caught).__name__, caught, flush=True)
        return
    raise SystemExit(f"no {error.__name__}")
"""


def start_child(program: str, *texts: str, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a program after `CHILD`, its texts as arguments, and return how it ended."""
    package = Path(importlib.util.find_spec("tensorwasm").origin).parents[1]
    return subprocess.run(
        [sys.executable, "-c", CHILD + program, *texts],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def run_child(program: str, *texts: str, limit_s: float = 60.0) -> str:
    """Run a program likewise, which must end well, and return what it printed."""
    ended = start_child(program, *texts, limit_s=limit_s)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
