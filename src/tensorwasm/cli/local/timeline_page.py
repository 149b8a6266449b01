"""The page of `tensor-wasm offload run --timeline`: where the time of calls went, as HTML that needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from tensorwasm.guest.imports.offload.recording import MOST_SPANS, OffloadSpan, SpanKind, SpanLog
from tensorwasm.runtime.api.comparison import CallSpan

_WIDTH: Final = 1000
"""Units across a lane; spans of less than one are drawn together with their neighbours."""
_TICKS: Final = 4
_DETAILS: Final = 3
"""Of a lane, the most frequent ones."""
_STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #667080; --line: #d9dee5; --lane: #f1f3f6;
  --guest: #7d8fa9; --declined: #c2566b; --plan: #8d6cc9; --in: #2b93a8; --run: #d98324; --out: #4c9a4f }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --text: #e4e8ee; --soft: #98a2b1; --line: #323944;
  --lane: #1e232b; --guest: #6d7f99; --declined: #d5697f; --plan: #a488dd; --in: #3aa9bf; --run: #e5953b;
  --out: #5fb062 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem } h1, h2 { overflow-wrap: anywhere }
.lane { display: grid; grid-template-columns: 13rem 1fr; gap: 0 .8rem; align-items: center; margin: .3rem 0 }
.lane small { display: block; color: var(--soft) }
svg { width: 100%; height: 22px; background: var(--lane); border-radius: 3px; display: block }
rect { cursor: pointer } .axis { display: flex; justify-content: space-between; color: var(--soft); font-size: .8rem }
.guest { fill: var(--guest) } .declined { fill: var(--declined) } .plan { fill: var(--plan) } .in { fill: var(--in) }
.run { fill: var(--run) } .out { fill: var(--out) }
.picked { min-height: 1.5em; color: var(--soft); overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere }
th { color: var(--soft); font-weight: 500; overflow-wrap: normal }
@media (max-width: 700px) { .lane { grid-template-columns: 1fr }
  thead { display: none } tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line) }
  td { display: grid; grid-template-columns: 9rem 1fr; border: 0; padding: .1rem 0 }
  td::before { content: attr(data-name); color: var(--soft) } }
"""
_SCRIPT: Final = """
document.addEventListener("click", event => {
  const title = event.target.closest("rect")?.querySelector("title");
  if (title) event.target.closest("section").querySelector(".picked").textContent = title.textContent;
});
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_CLASSES: Final[Mapping[SpanKind, str]] = {
    SpanKind.GUEST: "declined",
    SpanKind.PLAN: "plan",
    SpanKind.COPY_IN: "in",
    SpanKind.RUN: "run",
    SpanKind.COPY_OUT: "out",
}
_ELSEWHERE: Final = (SpanKind.COPY_IN, SpanKind.RUN, SpanKind.COPY_OUT)


def draw_timeline(title: str, calls: Sequence[CallSpan], log: SpanLog, regions: Sequence[Mapping[str, Any]]) -> str:
    """Return the page.

    Args:
        title: its heading, as plain text.
        calls: in their order.
        log: the spans of these calls.
        regions: of each region its number, function, source line, runs that were taken, and reasons of the others.
    """
    names = {region["region"]: str(region["function"]) for region in regions}
    sections = "".join(_draw_call(call, log.spans, names) for call in calls)
    total = sum(each.count for each in log.totals.values())
    cut = f"<p>Only the first {MOST_SPANS:,} of {total:,} spans are drawn; the table has all.</p>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{cut if total > MOST_SPANS else ''}{sections}"
        f"<h2>Regions, all calls together</h2>{_table(log, regions)}<script>{_SCRIPT}</script></body></html>\n"
    )


def _draw_call(call: CallSpan, spans: Sequence[OffloadSpan], names: Mapping[int, str]) -> str:
    """Return the lanes of one call."""
    length_ns = max(call.ended_ns - call.began_ns, 1)
    mine = [span for span in spans if call.began_ns <= span.began_ns <= call.ended_ns]
    others = sorted((span for span in mine if span.kind is not SpanKind.GUEST), key=lambda span: span.began_ns)
    guest_ns = length_ns - sum(span.own_ns for span in others)
    lanes = _lane("guest code", _share(guest_ns, length_ns), _bars(call, _between(call, others), "guest", {}))
    for kind, colour in _CLASSES.items():
        found = [span for span in mine if span.kind is kind]
        if found:
            lanes += _lane(kind.title, _summary(kind, found, length_ns), _bars(call, found, colour, names))
    ticks = "".join(f"<span>{_ms(length_ns * tick // _TICKS)}</span>" for tick in range(_TICKS + 1))
    head = escape(f"{call.export} {list(call.args)}: {_ms(length_ns)}")
    axis = f'<div class="lane"><span></span><div class="axis">{ticks}</div></div>'
    return f'<section><h2>{head}</h2>{lanes}{axis}<p class="picked" aria-live="polite"></p></section>'


def _between(call: CallSpan, others: Sequence[OffloadSpan]) -> Iterator[OffloadSpan]:
    """Yield the time of a call that no other span takes."""
    at_ns = call.began_ns
    for span in [*others, OffloadSpan(SpanKind.GUEST, -1, call.ended_ns, call.ended_ns)]:
        if span.began_ns > at_ns:
            yield OffloadSpan(SpanKind.GUEST, -1, at_ns, span.began_ns)
        at_ns = max(at_ns, span.ended_ns)


def _lane(title: str, summary: str, bars: str) -> str:
    svg = f'<svg viewBox="0 0 {_WIDTH} 20" preserveAspectRatio="none" role="img" aria-label="{title}">{bars}</svg>'
    return f'<div class="lane"><div>{title}<small>{summary}</small></div>{svg}</div>'


def _bars(call: CallSpan, spans: Iterable[OffloadSpan], colour: str, names: Mapping[int, str]) -> str:
    """Return rectangles; spans too short to be seen are one with those beside them."""
    scale = _WIDTH / max(call.ended_ns - call.began_ns, 1)
    groups: list[list[OffloadSpan]] = []
    end = 0.0
    for span in sorted(spans, key=lambda span: span.began_ns):
        first, last = ((at_ns - call.began_ns) * scale for at_ns in (span.began_ns, span.ended_ns))
        if groups and first - end < 1 and last - first < 1:
            groups[-1].append(span)
        else:
            groups.append([span])
        end = max(end, last)
    return "".join(_bar(call, group, scale, colour, names) for group in groups)


def _bar(call: CallSpan, group: Sequence[OffloadSpan], scale: float, colour: str, names: Mapping[int, str]) -> str:
    first, last = group[0], max(group, key=lambda span: span.ended_ns)
    x, width = (first.began_ns - call.began_ns) * scale, (last.ended_ns - first.began_ns) * scale
    text = _describe(first, names) if len(group) == 1 else f"{len(group)} spans of {_describe(first, names)} and others"
    place = f'x="{x:.2f}" y="1" width="{max(width, 0.8):.2f}" height="18"'
    return f'<rect class="{colour}" {place}><title>{escape(text)}</title></rect>'


def _describe(span: OffloadSpan, names: Mapping[int, str]) -> str:
    length_ns = span.ended_ns - span.began_ns
    if span.region < 0:
        return f"guest code, {_ms(length_ns)}"
    words = [f"region {span.region} of {names.get(span.region, '?')}: {span.kind.title}", _ms(length_ns)]
    words += [_amount(span.kind, span.amount, span.own_ns)] if span.kind.unit else []
    return ", ".join([*words, span.detail] if span.detail else words)


def _summary(kind: SpanKind, spans: Sequence[OffloadSpan], call_ns: int) -> str:
    own_ns = sum(span.own_ns for span in spans)
    words = [_share(own_ns, call_ns), *([f"{len(spans):,} times"] if len(spans) > 1 else [])]
    words += [_amount(kind, sum(span.amount for span in spans), own_ns)] if kind.unit else []
    details = Counter(span.detail for span in spans if span.detail).most_common(_DETAILS)
    return escape(", ".join([*words, *(f"{count} x {detail}" if count > 1 else detail for detail, count in details)]))


def _table(log: SpanLog, regions: Sequence[Mapping[str, Any]]) -> str:
    heads = ("region", "function", "line", "taken", "declined", "plan making", "elsewhere", "in the guest", "moved")
    rows = []
    for region in regions:
        totals = {kind: log.totals.get((kind, region["region"])) for kind in SpanKind}
        spent_ns = {kind: found.own_ns if found else 0 for kind, found in totals.items()}
        moved = [
            f"{kind.title}: {_amount(kind, found.amount, found.own_ns)}"
            for kind, found in totals.items()
            if found and found.amount and kind.unit
        ]
        cells = (
            *(region[name] for name in ("region", "function", "line", "taken")),
            "; ".join(region["reasons"]),
            _ms(spent_ns[SpanKind.PLAN]),
            _ms(sum(spent_ns[kind] for kind in _ELSEWHERE)),
            _ms(spent_ns[SpanKind.GUEST]),
            "; ".join(moved),
        )
        shown = ("" if cell is None else escape(str(cell)) for cell in cells)
        row = "".join(f'<td data-name="{head}">{cell}</td>' for head, cell in zip(heads, shown, strict=True))
        rows.append(f"<tr>{row}</tr>")
    head = "".join(f"<th>{each}</th>" for each in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _amount(kind: SpanKind, amount: int, spent_ns: int) -> str:
    if kind.unit == "bytes":
        return f"{amount:,} bytes, {amount / max(spent_ns, 1):.3g} GB/s"
    return f"{amount:,} {kind.unit if amount != 1 else kind.unit.removesuffix('es')}"


def _share(part_ns: int, whole_ns: int) -> str:
    return f"{_ms(part_ns)}, {100 * part_ns / whole_ns:.1f} %"


def _ms(length_ns: int) -> str:
    return f"{length_ns / 1e6:.3g} ms" if length_ns < 1e8 else f"{length_ns / 1e6:,.0f} ms"
