"""Where benchmarks find the example guests and kernels: in the checkout that the package runs from."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs

ROOT: Final = Path(__file__).resolve().parents[3]


def read_example(name: str) -> bytes:
    """Return the bytes of ``examples/<name>``.

    Raises:
        InvalidArgs: the package does not run from a checkout.
    """
    return _read(f"examples/{name}")


def read_guest(name: str) -> bytes:
    """Return a guest that only benchmarks run.

    Raises:
        InvalidArgs: the package does not run from a checkout.
    """
    return _read(f"bench/guests/{name}.wasm")


def _read(name: str) -> bytes:
    try:
        return (ROOT / name).read_bytes()
    except OSError:
        raise InvalidArgs(f"benchmarks need {name}: run them from a checkout of the project") from None
