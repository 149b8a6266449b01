"""The folder in which compiled host functions are kept between runs.

Numba's index of what it has compiled is a pickle, and the code is run as it is: whoever can write there runs what they
like as us. So the folder is our own, or it is not used.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from tensorwasm.guest.engine import folders


def open_folder(contents: Iterable[object]) -> Path:
    """Return the folder for functions compiled from these sources and numbers, made if it is not there.

    Args:
        contents: everything that went into the functions besides the files of this package; compared by its text.

    Raises:
        OSError: it cannot be made, or others could write to it; the message says which folder and why.
    """
    return folders.open_own("native", _digest(contents))


def _digest(contents: Iterable[object]) -> str:
    """Return a name for what is compiled: a change of any source, number or tool gives another."""
    digest = hashlib.sha256(sys.version.encode())
    for distribution in ("numba", "llvmlite"):
        digest.update(metadata.version(distribution).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    for item in contents:
        digest.update(repr(item).encode())
    return digest.hexdigest()[:32]
