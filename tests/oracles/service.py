"""What a service owes to whoever it has answered: a ledger of what was acknowledged, and a judge of what is there.

Results are counted where they are made: a trigger of the database writes down every end of a job with its transaction,
so that a second one shows even where it overwrites the first; and what was asked, for that goes with the job's end.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product

import httpx

SOON_S = 330.0
"""What a job may take that was interrupted again and again: the longest pause between attempts, and some more."""

SLACK_S = 0.5
"""By how much clocks of clients and of processes that wait for a processor may differ."""

NEAR_S = 4.0
"""How near to an answer a kill is told that may explain what it lost."""

ENDED = ("completed", "failed", "cancelled", "dead")

_WITNESS = """
CREATE TABLE witness (job TEXT NOT NULL, was TEXT NOT NULL, now TEXT NOT NULL, result BLOB);
CREATE TRIGGER witness_ends AFTER UPDATE ON jobs
WHEN NEW.status IN ('completed', 'failed', 'cancelled', 'dead') OR OLD.status IN ('completed', 'failed', 'cancelled', 'dead')
BEGIN INSERT INTO witness VALUES (NEW.id, OLD.status, NEW.status, NEW.result); END;
CREATE TABLE asked (job TEXT NOT NULL, request BLOB NOT NULL);
CREATE TRIGGER witness_requests AFTER INSERT ON jobs
BEGIN INSERT INTO asked VALUES (NEW.id, NEW.request); END;
CREATE TRIGGER witness_losses AFTER DELETE ON jobs
BEGIN INSERT INTO witness VALUES (OLD.id, OLD.status, 'deleted', NULL); END;
"""  # noqa: E501 - the two conditions are one line


def install_witness(database):
    """Have the database of a running server write down every end of a job."""
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        connection.executescript(_WITNESS)


@dataclass
class Promises:
    """What was acknowledged, to all clients together; thread-safe.

    Attributes:
        functions: names by id.
        deleted: ids of functions whose deletion was acknowledged.
        jobs: expected results by id.
        tokens: texts by id.
        revoked: texts of tokens whose revocation was acknowledged.
        snapshots: sizes in bytes by id.
        sessions: by id, the number of the last durable call that was answered.
        invoked: by the ID of the request, when a call of a function was answered.
        wrong: answers that no promise allows.
        answers: how often each status and kind was answered.
    """

    functions: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    jobs: dict[str, object] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict, repr=False)
    revoked: list[str] = field(default_factory=list, repr=False)
    snapshots: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    invoked: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def keep(self, kind, identity, value):
        """Write down what was acknowledged; the same id never means two things."""
        with self.lock:
            made = getattr(self, kind)
            if identity in made and kind != "sessions":
                self.wrong.append(f"{kind}: {identity} was given to two")
            made[identity] = value

    def count(self):
        """Return how many of each kind were acknowledged."""
        return {
            "functions": len(self.functions),
            "deleted functions": len(self.deleted),
            "jobs": len(self.jobs),
            "tokens": len(self.tokens),
            "revoked tokens": len(self.revoked),
            "snapshots": len(self.snapshots),
            "sessions": len(self.sessions),
        }


def found_over_http(promises, client):
    """Return how many of each kind are there as they were promised, asking each by its id; waits for jobs to end."""
    return {
        "functions": sum(_has_function(client, each, name) for each, name in promises.functions.items()),
        "deleted functions": sum(client.get(f"/functions/{each}").status_code == 404 for each in promises.deleted),
        "jobs": sum(_has_result(client, each, result) for each, result in promises.jobs.items()),
        "tokens": sum(_is_let_in(client, text) for text in promises.tokens.values()),
        "revoked tokens": sum(not _is_let_in(client, text) for text in promises.revoked),
        "snapshots": sum(_has_snapshot(client, each, size) for each, size in promises.snapshots.items()),
        "sessions": sum(_goes_on(client, each, calls) for each, calls in promises.sessions.items()),
    }


def _has_function(client, function, name):
    seen = client.get(f"/functions/{function}")
    if seen.status_code != 200 or seen.json()["name"] != name:
        return False
    called = client.post(f"/functions/{function}/invoke", json={"export": "add", "args": [2, 3]})
    return called.status_code == 200 and called.json()["result"] == [5]


def _has_result(client, job, result):
    ends = time.monotonic() + SOON_S
    while time.monotonic() < ends:
        seen = client.get(f"/jobs/{job}/wait", params={"timeout_s": 10}).json()
        if seen.get("status") in ENDED:
            return seen["status"] == "completed" and seen["result"]["result"] == result
        if "status" not in seen:
            return False
    return False


def _is_let_in(client, text):
    answer = httpx.get(f"{client.base_url}/functions", headers={"Authorization": f"Bearer {text}"}, timeout=30)
    return answer.status_code == 200


def _has_snapshot(client, snapshot, size_bytes):
    content = client.get(f"/snapshots/{snapshot}/content")
    if content.status_code != 200 or len(content.content) != size_bytes:
        return False
    restored = client.post(f"/snapshots/{snapshot}/restore")
    return restored.status_code == 201


def _goes_on(client, session, calls):
    """A session's counter is where its last acknowledged durable call left it, or further: a call may be unanswered."""
    called = client.post(f"/sessions/{session}/invoke", json={"export": "main"})
    return called.status_code == 200 and called.json()["result"][0] > calls


def count_interrupted(database):
    """Return how many jobs were begun more than once, and how often any was at most."""
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return connection.execute("SELECT COUNT(*) FILTER (WHERE attempts > 1), MAX(attempts) FROM jobs").fetchone()


def broken_in_database(database, promises):
    """Return what is wrong in the database of a server that has ended; nothing if nothing is."""
    wrong = []
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        ask = connection.execute
        checked = ask("PRAGMA integrity_check").fetchall()
        if checked != [("ok",)]:
            wrong.append(f"the file is damaged: {checked[:3]}")
        for job, ends in ask("SELECT job, COUNT(*) FROM witness GROUP BY job HAVING COUNT(*) != 1"):
            wrong.append(f"job {job} has {ends} ends")
        for job, was, now in ask("SELECT job, was, now FROM witness WHERE was != 'running' AND now != 'cancelled'"):
            wrong.append(f"job {job} was {was} and then {now}")
        ends = {job: (now, result) for job, now, result in ask("SELECT job, now, result FROM witness")}
        for job, result in promises.jobs.items():
            now, got = ends.get(job, (None, None))
            if now != "completed" or json.loads(got)["result"] != result:
                row = ask("SELECT status, attempts, due_unix_ms, error FROM jobs WHERE id = ?", (job,)).fetchone()
                wrong.append(f"job {job} ended as {now} with {got!r}, and is {row} at {time.time():.3f}")
        twice = ask("SELECT COUNT(*) - COUNT(DISTINCT request) FROM asked").fetchone()[0]
        if twice:
            wrong.append(f"{twice} jobs were made twice under one key")
        many = ask("SELECT COUNT(*) FROM jobs WHERE attempts > max_attempts").fetchone()[0]
        if many:
            wrong.append(f"{many} jobs were tried too often")
        twice = ask("SELECT COUNT(*) - COUNT(DISTINCT name) FROM functions").fetchone()[0]
        if twice:
            wrong.append(f"{twice} functions were made twice under one key")
    return wrong


def lost_to_kills(answered, kills, windows):
    """Return how many answers may have left no trace: how long before its kill a process had not passed it on yet.

    Args:
        answered: when each was.
        kills: when a process was killed, and what it did.
        windows: seconds by what a process did.
    """
    spans = [(at - windows[role] - SLACK_S, at + SLACK_S) for at, role in kills if role in windows]
    return sum(any(begin <= each <= end for begin, end in spans) for each in answered)


def lost_to_pairs(kills, window_s):
    """Return spans of answers that a front had reported to a primary which had not written them yet: both were killed.

    The window is from the report to when the primary has it on the disk, or the next primary has it again.
    """
    times = {role: [at for at, killed in kills if killed == role] for role in ("front", "primary")}
    pairs = [sorted(pair) for pair in product(times["front"], times["primary"])]
    return [(last - window_s - SLACK_S, first + SLACK_S) for first, last in pairs if last - first <= window_s]


@dataclass(frozen=True)
class AuditedCalls:
    """How the audit log agrees with what was answered.

    Attributes:
        lines: of calls of functions.
        missing: calls that were answered and have no line.
        excused: those of them that a kill may have lost.
        twice: lines that are there again.
        unexplained: of each other one, which kills were near, in seconds from the answer.
    """

    lines: int
    missing: int
    excused: int
    twice: int
    unexplained: list[str]


def audited_calls(path, answered, kills, windows):
    """Compare the audit log with calls that were answered, by the ID of the request; arguments as above.

    The window of ``reported`` is that of `lost_to_pairs`.
    """
    lines = Counter()
    for line in path.read_bytes().splitlines():
        found = json.loads(line)
        if found.get("action") == "invoke_function":
            lines[found["request_id"]] += 1
    missing = [at for request, at in answered.items() if request not in lines]
    spans = lost_to_pairs(kills, windows["reported"])
    left = [at for at in missing if not lost_to_kills([at], kills, windows)]
    left = [at for at in left if not any(begin <= at <= end for begin, end in spans)]
    near = [", ".join(f"{role} {kill - at:+.2f}" for kill, role in kills if abs(kill - at) < NEAR_S) for at in left]
    twice = sum(count - 1 for count in lines.values())
    return AuditedCalls(lines.total(), len(missing), len(missing) - len(left), twice, near)
