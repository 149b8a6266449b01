"""Where benchmarks find the example guests and kernels: in the checkout that the package runs from."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs

FOLDER: Final = Path(__file__).resolve().parents[3] / "examples"


def read_example(name: str) -> bytes:
    """Return the bytes of ``examples/<name>``.

    Raises:
        InvalidArgs: the package does not run from a checkout.
    """
    try:
        return (FOLDER / name).read_bytes()
    except OSError:
        raise InvalidArgs(f"benchmarks need examples/{name}: run them from a checkout of the project") from None
