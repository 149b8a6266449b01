"""The desk: one commit for many, each undone by itself, nobody waiting for long, nothing told before it is true."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import OperationalError

from tensorwasm.database import desk as desk_module
from tensorwasm.database.desk import Desk
from tensorwasm.database.opening import open_database, sqlite_url
from tensorwasm.database.schema import FUNCTIONS, META, VERSIONS
from tensorwasm.errors import CapacityExhausted, Conflict, DatabaseUnavailable, InternalError, NotFound, TensorWasmError


def put(connection, key, value="v"):
    connection.execute(insert(META).values(key=key, value=value))
    return key


def get(connection, key):
    return connection.execute(select(META.c.value).where(META.c.key == key)).scalar_one_or_none()


def put_and_fail(connection, key, error=NotFound):
    put(connection, key)
    raise error(key)


def count(connection):
    return connection.execute(select(func.count()).select_from(META)).scalar_one()


class Gate:
    """A write that holds the desk's thread until it is let go, so that what follows waits."""

    def __init__(self):
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, connection):
        self.entered.set()
        assert self.open.wait(10)


async def together(desk, *calls):
    """Return what comes of writes that share a transaction."""
    gate = Gate()
    first = asyncio.ensure_future(desk.write(gate))
    await asyncio.to_thread(gate.entered.wait)
    rest = [asyncio.ensure_future(desk.write(fn, *args)) for fn, *args in calls]
    await asyncio.sleep(0)
    gate.open.set()
    await first
    return await asyncio.gather(*rest, return_exceptions=True)


def test_what_is_written_is_read(desk):
    assert desk.write_now(put, "a", value="1") == "a"
    assert desk.read_now(get, "a") == "1"


def test_writes_that_wait_share_a_commit_and_those_that_raise_undo_only_themselves(desk):
    calls = [(put, "a"), (put_and_fail, "b"), (put, "a"), (put_and_fail, "c", ZeroDivisionError), (put, "d")]
    outcomes = asyncio.run(together(desk, *calls))
    assert [type(outcome) for outcome in outcomes] == [str, NotFound, Conflict, ZeroDivisionError, str]
    assert [desk.read_now(get, key) for key in "abcd"] == ["v", None, None, "v"]
    statistics = desk.statistics()
    assert (statistics.commits, statistics.writes, statistics.largest_batch) == (2, 3, 5)


def test_a_row_that_leads_nowhere_contradicts_what_is_there(desk):
    orphan = {"function_id": "f", "number": 1, "module": b"m" * 32, "module_bytes": 1, "created_unix_ms": 1}
    with pytest.raises(Conflict):
        desk.write_now(lambda connection: connection.execute(insert(VERSIONS).values(orphan)))


def test_a_row_without_what_it_needs_is_a_mistake_here_and_its_values_are_not_told(desk, caplog):
    with pytest.raises(InternalError) as caught:
        desk.write_now(lambda connection: connection.execute(insert(FUNCTIONS).values(id="hunter2")))
    assert "hunter2" not in str(caught.value) + caplog.text
    assert "INSERT INTO functions" in caplog.text


def test_a_reader_cannot_write(desk):
    with pytest.raises((DatabaseUnavailable, InternalError)):
        desk.read_now(put, "a")
    assert desk.read_now(get, "a") is None


def test_a_reader_sees_one_state(desk):
    def read_twice(connection):
        before = count(connection)
        threading.Thread(target=lambda: (desk.write_now(put, "between"), done.set())).start()
        assert done.wait(10)
        return before, count(connection)

    done = threading.Event()
    before, after = desk.read_now(read_twice)
    assert before == after
    assert desk.read_now(count) == before + 1


def test_callers_that_leave_do_no_harm(desk):
    async def main():
        gate = Gate()
        first = asyncio.ensure_future(desk.write(gate))
        await asyncio.to_thread(gate.entered.wait)
        left, stays = asyncio.ensure_future(desk.write(put, "left")), asyncio.ensure_future(desk.write(put, "stays"))
        await asyncio.sleep(0)
        left.cancel()
        first.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        return await stays

    assert asyncio.run(main()) == "stays"
    assert desk.write_now(put, "later") == "later"


def test_an_event_loop_that_is_closed_meanwhile_does_no_harm(desk):
    async def main():
        asyncio.ensure_future(desk.write(gate))  # noqa: RUF006 - it is to be left behind
        await asyncio.to_thread(gate.entered.wait)

    gate = Gate()
    asyncio.run(main())
    gate.open.set()
    assert desk.write_now(put, "later") == "later"


def test_a_full_queue_refuses_at_once_and_takes_calls_again_when_there_is_room(database):
    desk, gate = Desk(database, queue=2), Gate()
    holder = threading.Thread(target=desk.write_now, args=(gate,))
    holder.start()
    assert gate.entered.wait(10)

    async def main():
        waiting = [asyncio.ensure_future(desk.write(put, key)) for key in "ab"]
        await asyncio.sleep(0)
        with pytest.raises(CapacityExhausted):
            await desk.write(put, "c")
        gate.open.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == ["a", "b"]
    assert desk.write_now(put, "c") == "c"
    holder.join()
    desk.close_now()


def test_closing_does_what_waits_and_takes_nothing_more(database):
    async def main():
        calls = [asyncio.ensure_future(desk.write(put, str(i))) for i in range(50)]
        await asyncio.sleep(0)
        await desk.close()
        return await asyncio.gather(*calls)

    desk = Desk(database)
    assert asyncio.run(main()) == [str(i) for i in range(50)]
    for closed in (desk.read_now, desk.write_now):
        with pytest.raises(DatabaseUnavailable):
            closed(count)
    desk.close_now()


def test_when_the_commit_fails_all_hear_of_it_and_the_next_one_works(desk, monkeypatch):
    def fail(connection):
        monkeypatch.undo()
        raise OperationalError("COMMIT", {}, OSError("no room"))

    before = desk.write_now(put, "before")
    monkeypatch.setattr(desk._database._writer.dialect, "do_commit", fail)
    with pytest.raises(DatabaseUnavailable):
        desk.write_now(put_and_fail, "b")
    assert [desk.write_now(put, "a"), before] == ["a", "before"]
    assert desk.read_now(get, "b") is None
    assert desk.statistics().failures == 1


def test_a_call_that_breaks_the_transaction_fails_alone(desk):
    def spoil(connection):
        put(connection, "spoiled")
        raise OperationalError("INSERT", {}, OSError("the connection broke"))

    first, spoiled, last = asyncio.run(together(desk, (put, "first"), (spoil,), (put, "last")))
    assert (first, last) == ("first", "last")
    assert isinstance(spoiled, DatabaseUnavailable)
    assert [desk.read_now(get, key) for key in ("first", "spoiled", "last")] == ["v", None, "v"]
    assert desk.statistics().repeats == 1


@pytest.mark.parametrize("broken", [1, 2, 3, 4])
@pytest.mark.parametrize(("sqlstate", "attempts"), [("40P01", 4), ("40001", 4), ("57014", 2), (None, 2)])
def test_only_a_call_that_ends_in_deadlocks_is_made_more_than_twice(desk, monkeypatch, broken, sqlstate, attempts):
    """Their other side may take its lock late; on a full disk, or without a server, pauses would hold up all writes."""
    calls, pauses = [], []

    def spoil(connection):
        calls.append(put(connection, "spoiled"))
        if len(calls) <= broken:
            fault = OSError("the transaction is over")
            fault.sqlstate = sqlstate
            raise OperationalError("UPDATE", {}, fault)

    monkeypatch.setattr(desk_module, "time", SimpleNamespace(sleep=pauses.append))
    outcome, last = asyncio.run(together(desk, (spoil,), (put, "last")))
    assert (isinstance(outcome, TensorWasmError), last) == (broken >= attempts, "last")
    assert desk.read_now(get, "spoiled") == (None if broken >= attempts else "v")
    assert len(calls) == min(broken + 1, attempts)
    assert len(pauses) == max(0, len(calls) - 2)


def test_a_connection_in_doubt_is_not_used_again(desk):
    def break_it(connection):
        connection.connection.dbapi_connection.close()
        return connection.execute(text("SELECT 1"))

    for call in (desk.write_now, desk.read_now):
        with pytest.raises((DatabaseUnavailable, InternalError)):
            call(break_it)
        assert call(count) >= 1


WRITES = st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=12)


@settings(max_examples=40)
@given(st.lists(WRITES, max_size=4))
def test_many_callers_see_what_one_after_another_would(tmp_path_factory, batches):
    """In whatever batches, each write succeeds as it would by itself after those before it."""
    desk = Desk(open_database(sqlite_url(tmp_path_factory.mktemp("data") / "service.db"), readers=1))
    expected, found = set(), []
    try:
        for batch in batches:
            calls = [(put_and_fail if fails else put, key) for key, fails in batch]
            found += asyncio.run(together(desk, *calls))
        for outcome, (key, fails) in zip(found, [write for batch in batches for write in batch], strict=True):
            kind = Conflict if key in expected else NotFound if fails else str
            assert isinstance(outcome, kind), (outcome, key, fails)
            if kind is str:
                expected.add(key)
        assert {key for key in "abcdef" if desk.read_now(get, key)} == expected
    finally:
        desk.close_now()
