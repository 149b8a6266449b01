"""The command line: `tensor-wasm`.

Exit codes: 0 done; 1 the guest, the server or this program failed; 2 a mistake in what was asked, found here; 3 the
server has no such endpoint; 4 no such device; 124 the deadline passed here; 130 interrupted. `run` passes a guest's own
exit code on.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from tensorwasm.cli.app import execute  # noqa: PLC0415 - Typer is loaded for the command line only

    execute(sys.argv[1:])
