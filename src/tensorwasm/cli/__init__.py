"""The command line: `tensor-wasm`.

Exit codes: 0 success; 1 the guest, the server or this program failed; 2 invalid input, found here; 3 the server has
no such endpoint; 4 no such device; 124 the deadline passed here; 130 interrupted; 134 the guest trapped here. `run`
passes a guest's own exit code on.
"""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    gc.disable()  # imported objects stay alive: collections during imports cost a tenth of the time and free nothing
    from tensorwasm.cli.entry import execute  # noqa: PLC0415 - keeps importing a part of this package quick

    execute(sys.argv[1:])
