"""A report as a picture: one bar per figure, its limit as a mark, as SVG or whatever the file's ending says."""

from __future__ import annotations

from pathlib import Path

from tensorwasm.bench.figures import Report
from tensorwasm.errors import InvalidArgs


def plot(report: Report, path: Path) -> None:
    """Draw how far each figure is from its bar: 1 is the bar, shorter is better.

    Raises:
        InvalidArgs: matplotlib is not installed, or the file's ending is none it can write.
    """
    try:
        from matplotlib.figure import Figure as Canvas  # noqa: PLC0415 - a second of import that only a plot needs
    except ImportError:
        raise InvalidArgs("--plot needs matplotlib: pip install matplotlib") from None
    rows = [figure for figure in report.figures if figure.bar]
    used = []
    for row in rows:
        got = row.value if row.judged == "value" else row.ratio
        share = (got or 0.0) / (row.bar or 1.0)
        used.append(share if row.sense == "at most" else 1 / share if share else 0.0)
    canvas = Canvas(figsize=(8, 1 + 0.5 * len(rows)), layout="constrained")
    axes = canvas.subplots()
    axes.barh([row.name for row in rows], used, color=["#2a7f62" if row.met else "#b3392f" for row in rows])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("share of the bar used (1 = the bar)")
    axes.set_title(f"{report.benchmark} on {report.device}", loc="left")
    try:
        canvas.savefig(path)
    except ValueError as error:
        raise InvalidArgs(str(error)) from None
