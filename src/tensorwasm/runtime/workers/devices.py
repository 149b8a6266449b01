"""Which devices there are. A child process looks, because a driver that hangs would hang this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final

from tensorwasm.errors import DeviceUnavailable, InvalidArgs, TensorWasmError
from tensorwasm.gpu.opening import parse_choice
from tensorwasm.runtime.workers.template import make_environment

_LIMIT_S: Final = 60.0
_MODULE: Final = "tensorwasm.runtime.workers.devices"


def ask_child() -> int:
    """Return how many GPUs CUDA shows to a worker process, or raise `DeviceUnavailable`."""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module, without a shell
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=make_environment(os.environ, None),
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceUnavailable(f"the GPUs cannot be counted: {type(error).__name__}") from None
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode or not re.fullmatch(r"[0-9]{1,4}", text, re.ASCII):
        raise DeviceUnavailable(text[:400] or f"the GPUs cannot be counted: exit code {done.returncode}")
    return int(text)


def list_devices(choices: Sequence[str], count_gpus: Callable[[], int] = ask_child) -> tuple[str, ...]:
    """Return the selected devices, each ``emulator`` or ``cuda:N``; raise `InvalidArgs` or `DeviceUnavailable`.

    Choices are those of `tensorwasm.gpu.opening.open_device`, but ``cuda`` means every GPU, and ``auto`` every GPU, or
    the emulator where there is none. GPUs are counted only where that matters.
    """
    found = [device for choice in choices for device in _expand(choice, count_gpus)]
    if not found or len(set(found)) < len(found):
        raise InvalidArgs("name at least one device, and none twice")
    return tuple(found)


def _expand(choice: str, count_gpus: Callable[[], int]) -> list[str]:
    kind, ordinal = parse_choice(choice)
    if kind == "emulator" or ":" in choice:
        return [f"cuda:{ordinal}" if kind == "cuda" else kind]
    try:
        gpus = [f"cuda:{each}" for each in range(count_gpus())]
    except DeviceUnavailable:
        if kind == "cuda":
            raise
        gpus = []
    if not gpus and kind == "cuda":
        raise DeviceUnavailable("CUDA shows no GPU; see CUDA_VISIBLE_DEVICES")
    return gpus or ["emulator"]


def main() -> int:
    """Print how many GPUs there are, or why that is unknown; return the exit code."""
    from tensorwasm.gpu.cuda.opening import count_gpus  # noqa: PLC0415 - the driver is for the child only

    try:
        sys.stdout.write(f"{count_gpus()}\n")
    except TensorWasmError as error:
        sys.stdout.write(f"{error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
