"""The command line: `tensor-wasm`.

Exit codes: 0 done; 1 the guest, the server or this program failed; 2 a mistake in what was asked, found here; 3 the
server has no such endpoint; 4 no such device; 124 the deadline passed here; 130 interrupted; 134 the guest
trapped here. `run` passes a guest's own
exit code on.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line and exit with its code."""
    gc.disable()  # what is imported stays: looking at it again and again takes a tenth of the time
    from tensorwasm.cli.entry import execute  # noqa: PLC0415 - keeps importing a part of this package quick

    execute(sys.argv[1:])
