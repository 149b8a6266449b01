"""Small texts of PTX with the verdict that ptxas gave each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SNIPPETS = Path(__file__).parents[1] / "golden" / "ptx" / "snippets.txt"

_ENTRY = re.compile(r"=== (?P<name>[^:\n]+): (?P<verdict>\w+)\n(?P<source>.*?)(?=^=== |\Z)", re.MULTILINE | re.DOTALL)
_OPTIONS = re.compile(r"\A//\s*(?P<version>\d+\.\d+)\s+(?P<target>\w+)\n")
_REGISTERS = """
.reg .b16 h<9>; .reg .b32 r<9>; .reg .b64 d<9>; .reg .f32 f<9>; .reg .f64 e<9>; .reg .pred p<9>;
.reg .v2 .b32 v; .reg .v4 .f32 w;
"""


@dataclass(frozen=True)
class Snippet:
    """One snippet.

    Attributes:
        name: says what it tries.
        verdict: ``taken`` or ``refused``, by ptxas.
        source: as it stands in the file.
    """

    name: str
    verdict: str
    source: str

    @property
    def text(self) -> str:
        """The whole module: for ISA 9.0 and sm_100 unless a first comment says otherwise."""
        options = _OPTIONS.match(self.source)
        version, target = options.groups() if options else ("9.0", "sm_100")
        rest = self.source[options.end() :] if options else self.source
        if ".version" in rest:
            return rest
        if not re.search(r"\.entry\b", rest):
            rest = f".visible .entry k(.param .u64 p)\n{{{_REGISTERS}{rest}ret;\n}}\n"
        return f".version {version}\n.target {target}\n.address_size 64\n{rest}"


def read_snippets() -> list[Snippet]:
    """Return all snippets in the order of the file."""
    return [Snippet(*found.groups()) for found in _ENTRY.finditer(SNIPPETS.read_text("ascii"))]
