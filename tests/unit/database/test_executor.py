"""The executor: one commit for many writes, each undone alone, and results only after the commit."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import OperationalError

from fakes.blocking import BlockingExecutor
from tensorwasm.database.engine import executor as executor_module
from tensorwasm.database.engine.opening import open_database, sqlite_url
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
    """A write that holds the executor's thread until it is let go, so that what follows waits."""

    def __init__(self):
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, connection):
        self.entered.set()
        assert self.open.wait(10)


async def together(executor, *calls):
    """Return what comes of writes that share a transaction."""
    gate = Gate()
    first = asyncio.ensure_future(executor.write(gate))
    await asyncio.to_thread(gate.entered.wait)
    rest = [asyncio.ensure_future(executor.write(fn, *args)) for fn, *args in calls]
    await asyncio.sleep(0)
    gate.open.set()
    await first
    return await asyncio.gather(*rest, return_exceptions=True)


def test_written_values_are_read_back(executor):
    assert executor.write_now(put, "a", value="1") == "a"
    assert executor.read_now(get, "a") == "1"


def test_writes_that_wait_share_a_commit_and_those_that_raise_undo_only_themselves(executor):
    calls = [(put, "a"), (put_and_fail, "b"), (put, "a"), (put_and_fail, "c", ZeroDivisionError), (put, "d")]
    outcomes = asyncio.run(together(executor, *calls))
    assert [type(outcome) for outcome in outcomes] == [str, NotFound, Conflict, ZeroDivisionError, str]
    assert [executor.read_now(get, key) for key in "abcd"] == ["v", None, None, "v"]
    assert executor.statistics().commits == 2
    assert [len(errors) for errors in executor.batches] == [1, 5]
    assert sum(error is None for errors in executor.batches for error in errors) == 3


def test_a_violated_foreign_key_is_a_conflict(executor):
    orphan = {"function_id": "f", "number": 1, "module": b"m" * 32, "module_bytes": 1, "created_unix_ms": 1}
    with pytest.raises(Conflict):
        executor.write_now(lambda connection: connection.execute(insert(VERSIONS).values(orphan)))


def test_a_missing_value_is_an_internal_error_and_values_are_not_shown(executor, caplog):
    with pytest.raises(InternalError) as caught:
        executor.write_now(lambda connection: connection.execute(insert(FUNCTIONS).values(id="hunter2")))
    assert "hunter2" not in str(caught.value) + caplog.text
    assert "INSERT INTO functions" in caplog.text


def test_a_reader_cannot_write(executor):
    with pytest.raises((DatabaseUnavailable, InternalError)):
        executor.read_now(put, "a")
    assert executor.read_now(get, "a") is None


def test_a_reader_sees_one_state(executor):
    def read_twice(connection):
        before = count(connection)
        threading.Thread(target=lambda: (executor.write_now(put, "between"), done.set())).start()
        assert done.wait(10)
        return before, count(connection)

    done = threading.Event()
    before, after = executor.read_now(read_twice)
    assert before == after
    assert executor.read_now(count) == before + 1


def test_cancelled_callers_do_no_harm(executor):
    async def main():
        gate = Gate()
        first = asyncio.ensure_future(executor.write(gate))
        await asyncio.to_thread(gate.entered.wait)
        left, stays = (
            asyncio.ensure_future(executor.write(put, "left")),
            asyncio.ensure_future(executor.write(put, "stays")),
        )
        await asyncio.sleep(0)
        left.cancel()
        first.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        return await stays

    assert asyncio.run(main()) == "stays"
    assert executor.write_now(put, "later") == "later"


def test_a_closed_event_loop_does_no_harm(executor):
    async def main():
        asyncio.ensure_future(executor.write(gate))  # noqa: RUF006 - it is to be left behind
        await asyncio.to_thread(gate.entered.wait)

    gate = Gate()
    asyncio.run(main())
    gate.open.set()
    assert executor.write_now(put, "later") == "later"


def test_a_full_queue_refuses_at_once_and_takes_calls_again_when_there_is_room(database):
    executor, gate = BlockingExecutor(database, queue=2), Gate()
    holder = threading.Thread(target=executor.write_now, args=(gate,))
    holder.start()
    assert gate.entered.wait(10)

    async def main():
        waiting = [asyncio.ensure_future(executor.write(put, key)) for key in "ab"]
        await asyncio.sleep(0)
        with pytest.raises(CapacityExhausted):
            await executor.write(put, "c")
        gate.open.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == ["a", "b"]
    assert executor.write_now(put, "c") == "c"
    holder.join()
    executor.close_now()


def test_closing_finishes_waiting_calls_and_refuses_new_ones(database):
    async def main():
        calls = [asyncio.ensure_future(executor.write(put, str(i))) for i in range(50)]
        await asyncio.sleep(0)
        await executor.close()
        return await asyncio.gather(*calls)

    executor = BlockingExecutor(database)
    assert asyncio.run(main()) == [str(i) for i in range(50)]
    for closed in (executor.read_now, executor.write_now):
        with pytest.raises(DatabaseUnavailable):
            closed(count)
    executor.close_now()


def test_a_failed_commit_fails_all_its_calls_and_the_next_one_works(executor, monkeypatch):
    def fail(connection):
        monkeypatch.undo()
        raise OperationalError("COMMIT", {}, OSError("no room"))

    before = executor.write_now(put, "before")
    monkeypatch.setattr(executor._database._writer.dialect, "do_commit", fail)
    with pytest.raises(DatabaseUnavailable):
        executor.write_now(put_and_fail, "b")
    assert [executor.write_now(put, "a"), before] == ["a", "before"]
    assert executor.read_now(get, "b") is None
    assert executor.failures() == 1


def test_a_call_that_breaks_the_transaction_fails_alone(executor):
    def spoil(connection):
        put(connection, "spoiled")
        raise OperationalError("INSERT", {}, OSError("the connection broke"))

    first, spoiled, last = asyncio.run(together(executor, (put, "first"), (spoil,), (put, "last")))
    assert (first, last) == ("first", "last")
    assert isinstance(spoiled, DatabaseUnavailable)
    assert [executor.read_now(get, key) for key in ("first", "spoiled", "last")] == ["v", None, "v"]
    assert len(executor.repeated) == 3


@pytest.mark.parametrize("broken", [1, 2, 3, 4])
@pytest.mark.parametrize(("sqlstate", "attempts"), [("40P01", 4), ("40001", 4), ("57014", 2), (None, 2)])
def test_only_a_call_that_ends_in_deadlocks_is_made_more_than_twice(executor, monkeypatch, broken, sqlstate, attempts):
    """Their other side may take its lock late; on a full disk, or without a server, pauses would hold up all writes."""
    calls, pauses = [], []

    def spoil(connection):
        calls.append(put(connection, "spoiled"))
        if len(calls) <= broken:
            fault = OSError("the transaction is over")
            fault.sqlstate = sqlstate
            raise OperationalError("UPDATE", {}, fault)

    monkeypatch.setattr(executor_module, "time", SimpleNamespace(sleep=pauses.append))
    outcome, last = asyncio.run(together(executor, (spoil,), (put, "last")))
    assert (isinstance(outcome, TensorWasmError), last) == (broken >= attempts, "last")
    assert executor.read_now(get, "spoiled") == (None if broken >= attempts else "v")
    assert len(calls) == min(broken + 1, attempts)
    assert len(pauses) == max(0, len(calls) - 2)


def test_a_broken_connection_is_not_used_again(executor):
    def break_it(connection):
        connection.connection.dbapi_connection.close()
        return connection.execute(text("SELECT 1"))

    for call in (executor.write_now, executor.read_now):
        with pytest.raises((DatabaseUnavailable, InternalError)):
            call(break_it)
        assert call(count) >= 1


WRITES = st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=12)


@settings(max_examples=40)
@given(st.lists(WRITES, max_size=4))
def test_concurrent_callers_see_the_results_of_a_sequential_order(tmp_path_factory, batches):
    """In whatever batches, each write succeeds as it would by itself after those before it."""
    executor = BlockingExecutor(open_database(sqlite_url(tmp_path_factory.mktemp("data") / "service.db"), readers=1))
    expected, found = set(), []
    try:
        for batch in batches:
            calls = [(put_and_fail if fails else put, key) for key, fails in batch]
            found += asyncio.run(together(executor, *calls))
        for outcome, (key, fails) in zip(found, [write for batch in batches for write in batch], strict=True):
            kind = Conflict if key in expected else NotFound if fails else str
            assert isinstance(outcome, kind), (outcome, key, fails)
            if kind is str:
                expected.add(key)
        assert {key for key in "abcdef" if executor.read_now(get, key)} == expected
    finally:
        executor.close_now()
