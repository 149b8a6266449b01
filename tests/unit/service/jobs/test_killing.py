"""A process that runs jobs is killed again and again: what it accepted ends, each once."""

import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tensorwasm.database.engine.opening import sqlite_url

TESTS = Path(__file__).resolve().parents[3]
LOG = """
CREATE TABLE ends (id TEXT, status TEXT, attempts INTEGER, result BLOB);
CREATE TRIGGER note AFTER UPDATE ON jobs WHEN NEW.status NOT IN ('pending', 'running')
BEGIN INSERT INTO ends VALUES (NEW.id, NEW.status, NEW.attempts, NEW.result); END;
"""


class Child:
    """A process that runs jobs and reports on its standard output."""

    def __init__(self, url):
        command = [sys.executable, "-m", "fakes.job_runner", url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=TESTS, env={**os.environ, "PYTHONPATH": str(TESTS)}, **pipes)
        self.accepted, self.runs = [], []

    def submit(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()

    def read(self, until):
        """Read lines until one matches, or the process ends."""
        for line in self.process.stdout:
            word, *rest = line.split()
            if word == "accepted":
                self.accepted.append(rest[0])
            elif word == "run":
                self.runs.append((rest[0], int(rest[1])))
            if until(line.strip()):
                return
        assert self.process.wait() < 0, "it ended by itself"

    def kill(self):
        """Kill it, and read the rest of its output."""
        self.process.kill()
        self.read(lambda _line: False)
        self.process.stdin.close()
        self.process.stdout.close()


def test_every_accepted_job_ends_once_although_its_process_is_killed_repeatedly(tmp_path):
    url, dice = sqlite_url(tmp_path / "data" / "service.db"), random.Random(7)
    accepted, runs = [], []
    for round_number in range(7):
        child = Child(url)
        child.read(lambda line: line == "ready")
        if round_number == 0:
            with sqlite3.connect(tmp_path / "data" / "service.db") as connection:
                connection.executescript(LOG)
        child.submit(20)
        left = dice.randrange(1, 60)
        lines = iter(range(left))
        child.read(lambda _line: next(lines, None) is None)  # noqa: B023 - called here only
        child.kill()
        accepted += child.accepted
        runs += child.runs
    last = Child(url)
    last.read(lambda line: line == "active 0")
    last.kill()
    connection = sqlite3.connect(tmp_path / "data" / "service.db")
    ends = connection.execute("SELECT id, status, attempts, result FROM ends").fetchall()
    left = connection.execute("SELECT count(*) FROM jobs WHERE status IN ('pending', 'running')").fetchone()
    connection.close()
    assert left == (0,)
    assert len(accepted) >= 20
    assert set(accepted) <= {row[0] for row in ends}, "an accepted job did not end"
    assert max(Counter(row[0] for row in ends).values()) == 1, "two ends were recorded"
    assert {row[1] for row in ends} == {"completed"}
    assert all(f'"result":[{attempts}]'.encode() in result for _, _, attempts, result in ends)
    assert max(Counter(runs + last.runs).values()) == 1, "an attempt was made twice"
    assert any(attempt > 1 for _, attempt in runs + last.runs), "no attempt was cut short"
