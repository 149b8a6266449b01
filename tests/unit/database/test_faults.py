"""Failures of locks, disks, processes and servers: acknowledged writes survive them."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text, update

from fakes import database_writer
from fakes.blocking import BlockingExecutor
from tensorwasm.database.engine import dialects
from tensorwasm.database.engine.opening import open_database
from tensorwasm.database.schema import META
from tensorwasm.errors import DatabaseUnavailable

WRITER = [sys.executable, str(Path(database_writer.__file__))]


def put(connection, key, value="v"):
    connection.execute(insert(META).values(key=key, value=value))
    return key


def keys(connection):
    return set(connection.execute(select(META.c.key)).scalars())


def test_a_locked_database_fails_all_waiting_calls_at_once(sqlite_address, monkeypatch):
    monkeypatch.setattr(dialects, "BUSY_S", 0.2)
    holder, executor = open_database(sqlite_address), BlockingExecutor(open_database(sqlite_address), batch=4)

    async def write_all():
        calls = [executor.write(put, f"{number}") for number in range(50)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with holder.writing():
        assert {str(error) for error in asyncio.run(write_all())} == {"the database is locked by another process"}
        assert executor.read_now(keys) == {"schema_version"}
    assert executor.write_now(put, "a") == "a"
    assert executor.failures() == 50
    executor.close_now()
    holder.close()


def test_a_full_disk_is_reported_and_committed_rows_stay(sqlite_address):
    executor = BlockingExecutor(open_database(sqlite_address))
    executor.write_now(put, "before")
    executor.write_now(lambda connection: connection.execute(text("PRAGMA max_page_count = 60")).all())
    with pytest.raises(DatabaseUnavailable, match="full"):
        executor.write_now(put, "much", value="v" * 1_000_000)
    assert executor.write_now(put, "little") == "little"
    assert executor.read_now(keys) == {"schema_version", "before", "little"}
    executor.close_now()


def test_files_at_their_size_limit_lose_nothing_and_recover(sqlite_address):
    open_database(sqlite_address).close()
    done = subprocess.run([*WRITER, sqlite_address, "200000"], check=True, capture_output=True, text=True)
    failure, written = done.stdout.splitlines()
    assert failure.startswith("database_unavailable: the disk of the database")
    database = open_database(sqlite_address)
    with database.reading() as connection:
        found = keys(connection)
    database.close()
    assert found == {"schema_version", "after", *(f"before-{number}" for number in range(int(written)))}


@pytest.mark.parametrize("acknowledged", [1, 40, 700])
def test_acknowledged_writes_survive_a_killed_process(address, acknowledged):
    child = subprocess.Popen([*WRITER, address], stdout=subprocess.PIPE, text=True)
    reported = [child.stdout.readline() for _ in range(acknowledged)]
    child.kill()
    reported += child.communicate()[0].splitlines(keepends=True)
    database = open_database(address)
    with database.reading() as connection:
        found = keys(connection)
    database.close()
    assert {key.strip() for key in reported if key.endswith("\n")} <= found
    assert len(found) <= len(reported) + 1 + database_writer.CALLERS


def test_a_restarted_server_is_reconnected(postgres_server, postgres_address):
    executor = BlockingExecutor(open_database(postgres_address))
    executor.write_now(put, "a")
    postgres_server.stop()
    try:
        for call, args in ((executor.write_now, (put, "b")), (executor.read_now, (keys,))):
            with pytest.raises(DatabaseUnavailable):
                call(*args)
    finally:
        postgres_server.start()
    assert executor.write_now(put, "c") == "c"
    assert executor.read_now(keys) == {"schema_version", "a", "c"}
    executor.close_now()


def test_connections_ended_by_the_server_are_replaced(postgres_server, postgres_address):
    executor = BlockingExecutor(open_database(postgres_address))
    executor.write_now(put, "a")
    executor.read_now(keys)
    postgres_server.stop()
    postgres_server.start()
    assert executor.read_now(keys) == {"schema_version", "a"}
    assert executor.write_now(put, "b") == "b"
    executor.close_now()


def test_a_deadlock_is_resolved_by_trying_again(postgres_address):
    other = open_database(postgres_address)
    executor = BlockingExecutor(open_database(postgres_address))
    for key in "ab":
        executor.write_now(put, key, value="")
    holding, waiting = threading.Event(), threading.Event()

    def append(connection, key, text_):
        connection.execute(update(META).where(META.c.key == key).values(value=func.concat(META.c.value, text_)))

    def forwards(connection):
        append(connection, "a", "1")
        holding.set()
        assert waiting.wait(10)
        append(connection, "b", "1")

    def backwards():
        with other.writing() as connection:
            append(connection, "b", "2")
            assert holding.wait(10)
            # The transaction that has waited longest looks for a deadlock and is ended: that must be the executor's.
            connection.execute(text("SET LOCAL deadlock_timeout = '10s'"))
            waiting.set()
            append(connection, "a", "2")

    thread = threading.Thread(target=backwards)
    thread.start()
    executor.write_now(forwards)
    thread.join()
    read = executor.read_now(
        lambda connection: connection.execute(select(META.c.value).where(META.c.key.in_(["a", "b"]))).all()
    )
    assert [value for (value,) in read] == ["21", "21"]
    assert len(executor.repeated) == 1
    executor.close_now()
    other.close()
