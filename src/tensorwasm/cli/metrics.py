"""`tensor-wasm metrics`: what a server counts, once."""

from __future__ import annotations

import json
import sys

from tensorwasm.cli.client import Client, client_command
from tensorwasm.cli.showing import Output, clean


@client_command
def metrics(client: Client, *, output: Output = "text") -> None:
    """Print what the server counts, as it exposes it or as JSON."""
    from tensorwasm.cli.exposition import parse  # noqa: PLC0415 - keeps --help quick

    text = client.fetch("GET", "/metrics").text
    if output == "text":
        sys.stdout.writelines(f"{clean(line)}\n" for line in text.splitlines())
        return
    rows = [{"name": s.name, "labels": s.labels, "value": exact(s.value)} for s in parse(text)]
    sys.stdout.write(json.dumps(rows, indent=1).replace("\x7f", "\\u007f") + "\n")


def exact(value: float) -> float | str:
    """Return a number as JSON has it: what it has no words for is text."""
    return value if value - value == 0 else str(value)
