"""Record which of the committed snippets of PTX ptxas accepts.

Snippets are in ``tests/golden/ptx/snippets.txt``, each behind a line ``=== name: verdict``, where the verdict is
``taken`` or ``refused``; the text follows. An incomplete module is completed by a header, or by a header and a kernel.

Usage: judge_ptx.py [--check]
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from committed import ROOT, BuildError, parse_check_option, write_or_compare

sys.path.insert(0, str(ROOT / "tests"))

from strategies.snippets import SNIPPETS, Snippet, read_snippets

_TARGET: Final = re.compile(r"\.target (\w+)")


def judge(ptxas: str, snippet: Snippet) -> str:
    """Return the verdict of ptxas on a snippet: ``taken`` or ``refused``."""
    target = _TARGET.search(snippet.text)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "snippet.ptx")
        source.write_text(snippet.text, "ascii")
        command = [ptxas, f"-arch={target[1] if target else 'sm_80'}", "-c", "-o", f"{folder}/cubin", str(source)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    return "refused" if done.returncode else "taken"


def verdicts() -> Iterator[tuple[Path, bytes]]:
    """Yield the file of snippets with the current verdicts.

    Raises:
        BuildError: ptxas is not installed.
    """
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        raise BuildError("no ptxas on the PATH")
    snippets = read_snippets()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda snippet: judge(ptxas, snippet), snippets))
    text = "".join(f"=== {one.name}: {verdict}\n{one.source}" for one, verdict in zip(snippets, results, strict=True))
    yield SNIPPETS, text.encode("ascii")


if __name__ == "__main__":
    sys.exit(
        write_or_compare(verdicts(), "the verdicts of ptxas have not changed", check=parse_check_option(__doc__ or ""))
    )
