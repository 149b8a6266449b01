"""Audit records, and what may be done to a log behind its back."""

from hypothesis import strategies as st

from tensorwasm.tenancy.audit import AuditRecord, actor_of, outcome_of
from tensorwasm.tenancy.principal import Principal

TEXTS = st.one_of(
    st.text(max_size=40), st.sampled_from(["", "\ud800", "\0", '","hash":"', "x" * 40_000, "\N{SNOWMAN}\n"])
)
PRINCIPALS = st.builds(
    Principal,
    st.sampled_from(["bearer", "oidc", "dev"]),
    st.text("abc", min_size=1, max_size=5),
    st.none() | st.frozensets(st.integers(0, 2**64 - 1), max_size=5),
)
RECORDS = st.builds(
    AuditRecord,
    st.integers(0, 2**53),
    TEXTS,
    PRINCIPALS.map(actor_of),
    TEXTS,
    st.dictionaries(TEXTS, TEXTS | st.integers(0, 2**64 - 1), max_size=3),
    st.builds(outcome_of, st.integers(100, 599), st.none() | st.just("not_found")),
    st.floats(0, 1e9),
    st.none() | TEXTS,
    st.none() | TEXTS,
)


def _put(lines, at, new):
    return lines[:at] + new + lines[at:]


@st.composite
def tamperings(draw, lines):
    """Return a log's lines with one thing done to them that may not go unseen."""
    at = draw(st.integers(0, len(lines) - 1))
    other = draw(st.integers(0, len(lines) - 1).filter(lambda n: n != at))
    place = draw(st.integers(0, len(lines[at]) - 1))
    byte = draw(st.integers(0, 255).filter(lambda n: n != lines[at][place]))
    changed = lines[at][:place] + bytes([byte]) + lines[at][place + 1 :]
    swapped = list(lines)
    swapped[at], swapped[other] = lines[other], lines[at]
    return draw(
        st.sampled_from(
            [
                lines[:at] + lines[at + 1 :],
                lines[:at],
                lines[at + 1 :],
                [*lines[:at], changed, *lines[at + 1 :]],
                [*lines[:at], lines[at][:place], *lines[at + 1 :]],
                swapped,
                _put(lines, at, [lines[other]]),
                _put(lines, at, [b'{"seq":1,"prev":"","hash":""}\n']),
                _put(lines, at, [b"\n"]),
            ]
        )
    )
