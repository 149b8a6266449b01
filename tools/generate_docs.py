"""Write the reference pages that are generated from code and tests; `--check` fails if one differs."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import typer

import claims
from hardware import HARDWARE
from safety import SAFETY

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from tensorwasm import cli, errors  # noqa: E402 - the tree's own source, installed or not
from tensorwasm.cli.app import app  # noqa: E402 - the same
from tensorwasm.settings import CLIENT_SETTINGS, SETTINGS  # noqa: E402 - the same
from tensorwasm.settings.service import SERVICE_SETTINGS  # noqa: E402 - the same
from tensorwasm.telemetry.metrics import FAMILIES  # noqa: E402 - the same

FOLDER = ROOT / "docs" / "reference"


def render_settings() -> str:
    """Return the page of environment variables."""
    parts = ["# Settings"]
    tables = (("Of every process", SETTINGS), ("Of the service", SERVICE_SETTINGS), ("Of its clients", CLIENT_SETTINGS))
    for title, settings in tables:
        rows = [f"| `{s.variable}` | `{_default(s.default)}` | {s.meaning} |" for s in settings]
        parts += [f"## {title}", "\n".join(("| Variable | Default | Meaning |", "|---|---|---|", *rows))]
    return "\n\n".join(parts) + "\n"


def _default(value: object) -> str:
    return "(empty)" if value in ("", None) else str(value).lower() if isinstance(value, bool) else str(value)


def _leaves(error: type[errors.TensorWasmError]) -> Iterator[type[errors.TensorWasmError]]:
    yield error
    for child in error.__subclasses__():
        yield from _leaves(child)


def render_errors() -> str:
    """Return the page of errors."""
    rows = []
    for error in _leaves(errors.TensorWasmError):
        if error in {
            errors.TensorWasmError,
            errors.CallerError,
            errors.GuestError,
            errors.LimitError,
            errors.HostError,
        }:
            continue
        first = (error.__doc__ or "").strip().splitlines()[0]
        retry = "yes" if error.retryable else ""
        cells = (f"`{error.kind}`", f"`{error.__name__}`", error.http_status, error.exit_code, retry, first)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    head = ("| Kind | Python | HTTP | Exit code | Retry | Meaning |", "|---|---|---|---|---|---|")
    text = (
        "Kinds, statuses and exit codes are contract; messages are not. *Retry*: the same request may succeed if it is "
        "made again; the client has to know whether its effects may happen twice.\n\n"
        "A guest gets the errors of its calls of `wasi:cuda` as [codes of the ABI](../abi.md); their statuses are for "
        "the same errors of requests to the host."
    )
    return "\n".join(("# Errors", "", text, "", *head, *rows)) + "\n"


def render_metrics() -> str:
    """Return the page of metrics."""
    rows = []
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        buckets = f" Buckets: {', '.join(f'{bound:g}' for bound in family.buckets)} s." if family.buckets else ""
        rows.append(f"| `{family.name}` | {family.kind} | {labels} | {family.meaning}{buckets} |")
    text = (
        "`GET /metrics` gives these in Prometheus's text format, version 0.0.4, and the `process_*` metrics of the "
        "serving process. `route` is a route's template, such as `/functions/:id/invoke`, or `unknown`. "
        "`tenant_id` is `T#` and the number for the 100 tenants with the highest values, and `other` for the rest."
    )
    head = ("| Name | Type | Labels | Meaning |", "|---|---|---|---|")
    return "\n".join(("# Metrics", "", text, "", *head, *rows)) + "\n"


def render_commands() -> str:
    """Return the page of the command line: from the declarations, not from one library version's rendering."""
    parts = ["# Command line"]
    for name, command in _commands(typer.main.get_command(app)):
        rows = [f"| {_spelling(p)} | {' '.join((p.help or '').split())} |" for p in command.params if p.name != "help"]
        text = inspect.cleandoc(command.callback.__doc__ or "")
        parts += [f"## tensor-wasm {name}", text, "\n".join(("| Argument or option | Meaning |", "|---|---|", *rows))]
    codes = inspect.cleandoc(cli.__doc__ or "").split("\n\n", 1)[1]
    return "\n\n".join((*parts, "## Exit codes", codes)) + "\n"


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with its name, those of a group with the group's in front."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return f"`{parameter.opts[0]}{value}`"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": render_settings,
    "errors.md": render_errors,
    "metrics.md": render_metrics,
    "cli.md": render_commands,
    "hardware.md": partial(claims.render, HARDWARE),
    "safety.md": partial(claims.render, SAFETY),
}


def main() -> int:
    """Write the pages, or with ``--check`` print which differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs")
    check = parser.parse_args().check
    drifted = []
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        path, text = FOLDER / name, render()
        if path.exists() and path.read_text() == text:
            continue
        drifted.append(name)
        if not check:
            path.write_text(text)
    if check and drifted:
        print(f"docs/reference is out of date: {', '.join(drifted)}; run make docs", file=sys.stderr)
        return 1
    print(f"docs/reference: {len(PAGES)} pages, {'ok' if not drifted else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
