"""Generated files that are committed: written from their sources, or compared with them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


class BuildError(Exception):
    """A file cannot be generated; the text says why."""


def parse_check_option(description: str) -> bool:
    """Read the command line of a tool and return whether it must only compare."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare only: exit 1 if a file is not reproduced")
    return parser.parse_args().check


def write_or_compare(outputs: Iterator[tuple[Path, bytes]], all_is_well: str, *, check: bool) -> int:
    """Write or compare every file, and print the result.

    Args:
        outputs: every file and the bytes that its source gives; may raise `BuildError`.
        all_is_well: printed when no file differs.
        check: compare only.

    Returns:
        The exit code: 0; 1 if a compared file differs; 3 if the files cannot be generated.
    """
    try:
        changed = [path for path, made in outputs if _differed(path, made, check=check)]
    except BuildError as error:
        print(f"NOTHING WAS {'CHECKED' if check else 'BUILT'}: {error}", file=sys.stderr)
        return 3
    for path in changed:
        print(f"{'DIFFERS' if check else 'wrote'}: {path.relative_to(ROOT)}")
    if not changed:
        print(all_is_well)
    return 1 if check and changed else 0


def _differed(path: Path, made: bytes, *, check: bool) -> bool:
    if path.exists() and path.read_bytes() == made:
        return False
    if not check:
        path.write_bytes(made)
    return True
