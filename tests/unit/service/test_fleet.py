"""Links between processes that serve together, and fronts that do not do what they must."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import msgspec
import pytest

from fakes.desks import InlineDesk
from fakes.services import until
from tensorwasm.database.usage import HOUR_MS, UsageAmounts, add_report, list_usage
from tensorwasm.errors import DatabaseUnavailable, NotReady
from tensorwasm.service.fleet import front, primary
from tensorwasm.service.fleet.front import PrimaryLink, ReportedAudit, SessionsInPrimary
from tensorwasm.service.fleet.link import Link
from tensorwasm.service.fleet.messages import AskMetrics, Changed, Done, Evicted, FrontReport, Hello, TakenMetrics
from tensorwasm.service.fleet.primary import Fronts
from tensorwasm.telemetry.metrics import Samples
from tensorwasm.tenancy.audit import AuditRecord, outcome_of

ACTOR = msgspec.Raw(b'{"id":"x"}')
MUTE = """
import msgspec, os, signal, socket, sys
from tensorwasm.service.fleet.link import _Frame
from tensorwasm.service.fleet.messages import Hello
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
body = msgspec.msgpack.encode(_Frame(1, Hello(os.getpid())))
link.sendall(len(body).to_bytes(4) + body)
signal.pause()
"""
"""A front that says who it is, and then nothing more."""


async def ends():
    """Return the streams of both ends of a connection."""
    one, other = socket.socketpair()
    return await asyncio.open_connection(sock=one), await asyncio.open_connection(sock=other)


async def nothing(_):
    return Done()


def test_either_side_asks_and_the_other_answers():
    async def main():
        (reader, writer), (other_reader, other_writer) = await ends()

        async def answer(message):
            return TakenMetrics({"a": [(("x",), 1.0)]}, {}) if isinstance(message, AskMetrics) else Done()

        left, right = Link(reader, writer, nothing), Link(other_reader, other_writer, answer)
        running = [asyncio.ensure_future(each.run()) for each in (left, right)]
        found = await asyncio.gather(left.ask(AskMetrics()), left.ask(Changed()), right.ask(FrontReport(audit=[b"{}"])))
        assert [type(each) for each in found] == [TakenMetrics, Done, Done]
        assert found[0].values == {"a": [(("x",), 1.0)]}
        left.close()
        await asyncio.gather(*running)

    asyncio.run(main())


@pytest.mark.parametrize("rubbish", [b"\x00\x00\x00\x01\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02"])
def test_who_asks_is_told_that_the_other_side_has_ended_or_says_rubbish(rubbish):
    async def main():
        (reader, writer), (_, other) = await ends()
        link = Link(reader, writer, nothing)
        running = asyncio.ensure_future(link.run())
        asked = asyncio.ensure_future(link.ask(AskMetrics()))
        other.write(rubbish)
        other.close()
        with pytest.raises(NotReady):
            await asked
        await running
        with pytest.raises(NotReady):
            await link.ask(AskMetrics())

    asyncio.run(main())


def test_an_answer_that_fails_is_said_to_have_failed():
    async def main():
        (reader, writer), (other_reader, other_writer) = await ends()

        async def fails(_):
            raise ValueError("a bug")

        left, right = Link(reader, writer, nothing), Link(other_reader, other_writer, fails)
        running = [asyncio.ensure_future(each.run()) for each in (left, right)]
        with pytest.raises(NotReady, match="ValueError"):
            await left.ask(Hello(1))
        left.close()
        await asyncio.gather(*running)

    asyncio.run(main())


@pytest.mark.parametrize("known", [True, False])
def test_a_front_that_does_not_acknowledge_a_change_is_killed_before_it_is_answered(tmp_path, monkeypatch, known):
    """Whether it is connected, or was a front of the last primary and has not come."""
    monkeypatch.setattr(primary, "LATE_S", 0.2)

    async def main():
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        listening.listen(8)
        script = MUTE if known else "import signal; signal.pause()"
        with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "s")]) as process:  # noqa: ASYNC220 - it only starts
            fronts = Fronts(nothing, nothing, () if known else (process.pid,))
            await fronts.listen(listening)
            if known:
                await until(lambda: len(fronts) == 1)
            await fronts.tell(Changed(identities=True))
            assert await asyncio.to_thread(process.wait, 10) == -9
            await fronts.tell(Changed(identities=True))
            await fronts.close()

    asyncio.run(main())


def test_audit_records_wait_for_a_primary_and_come_once():
    class Primary:
        def __init__(self):
            self.there, self.got = False, []

        async def ask(self, message):
            if not self.there:
                raise NotReady("there is no primary process")
            self.got += message.audit
            return Done()

    async def main():
        found = Primary()
        audit = ReportedAudit(found)
        for number in range(600):
            audit.append(AuditRecord(number, f"r{number}", ACTOR, "act", {}, outcome_of(200), 1.0))
        await asyncio.sleep(0)
        found.there = True
        await audit.close()
        names = [each.split(b'"request_id":"r', 1)[1].split(b'"', 1)[0] for each in found.got]
        assert sorted(map(int, names)) == list(range(600))
        assert audit.statistics().waiting == 0

    asyncio.run(main())


def test_a_tenant_without_idle_sessions_is_not_asked_for_by_every_call():
    class Primary:
        def __init__(self):
            self.idle, self.asked = {1: 2}, []

        async def require(self):
            pass

        async def ask(self, message):
            self.asked.append(message.tenant)
            left = self.idle.get(message.tenant, 0)
            self.idle[message.tenant] = max(0, left - 1)
            return Evicted(left > 0)

    async def main():
        found = Primary()
        sessions = SessionsInPrimary(found, {1: 5, 2: 5, 3: 0}.__getitem__)
        assert [sessions.any_idle(tenant) for tenant in (1, 2, 3)] == [True, True, False]
        assert [await sessions.evict_one(1) for _ in range(100)] == [True, True] + [False] * 98
        assert [await sessions.evict_one(2) for _ in range(100)] == [False] * 100
        assert found.asked.count(1) in range(3, 10)
        assert found.asked.count(2) in range(1, 10)
        assert not sessions.any_idle(2)
        await until(lambda: sessions.any_idle(2))

    asyncio.run(main())


def test_a_front_that_cannot_read_the_database_once_links_again(tmp_path):
    async def main():
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        listening.listen(8)
        fronts, failures = Fronts(nothing, nothing), [DatabaseUnavailable("it is locked")]

        async def refresh(_):
            if failures:
                raise failures.pop()

        link = PrimaryLink(str(tmp_path / "s"), refresh, Samples)
        await fronts.listen(listening)
        async with asyncio.timeout(10):
            await link.open()
        assert not failures
        assert len(fronts) == 1
        await link.close()
        await fronts.close()

    asyncio.run(main())


def test_usage_that_a_primary_has_written_but_not_acknowledged_counts_once(tmp_path, monkeypatch):
    """It is killed in between: what a front repeats has the mark by which the next primary knows it."""
    monkeypatch.setattr(front, "USAGE_AGAIN_S", 0.001)
    used, desk, answers = {7: UsageAmounts(requests=3, gpu_us=5)}, InlineDesk(), []

    async def main():
        async def take(report):
            for each in report.usage:
                reported = {each.hour_unix_ms: {each.tenant: UsageAmounts(*each.amounts)}}
                answers.append(await desk.write(add_report, report.reporter, report.mark, reported))
            if len(answers) % 2:
                raise ConnectionError("killed before it answers")

        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        listening.listen(8)
        fronts = Fronts(take, nothing)
        await fronts.listen(listening)
        link, told = PrimaryLink(str(tmp_path / "s"), nothing, Samples, "front 1"), []
        link.reported = lambda tenant, each: told.append((tenant, each))
        async with asyncio.timeout(10):
            await link.open()
            await link.write_usage(HOUR_MS, used)
            await link.write_usage(HOUR_MS, used)
        assert answers == [True, False, True, False]
        assert told == [*used.items()] * 2
        [(_, total)] = await desk.read(list_usage, 7, 0, 2 * HOUR_MS)
        assert (total.requests, total.gpu_us) == (6, 10)
        await link.close()
        await fronts.close()

    asyncio.run(main())
