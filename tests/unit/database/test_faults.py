"""What breaks: locks, disks, processes, servers. Whatever was acknowledged is there afterwards."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text, update

from fakes import database_writer
from tensorwasm.database import sqlite
from tensorwasm.database.desk import Desk
from tensorwasm.database.opening import open_database
from tensorwasm.database.schema import META
from tensorwasm.errors import DatabaseUnavailable

WRITER = [sys.executable, str(Path(database_writer.__file__))]


def put(connection, key, value="v"):
    connection.execute(insert(META).values(key=key, value=value))
    return key


def keys(connection):
    return set(connection.execute(select(META.c.key)).scalars())


def test_a_locked_database_is_told_to_all_who_wait_at_once(sqlite_address, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_S", 0.2)
    holder, desk = open_database(sqlite_address), Desk(open_database(sqlite_address), batch=4)

    async def write_all():
        calls = [desk.write(put, f"{number}") for number in range(50)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with holder.writing():
        assert {str(error) for error in asyncio.run(write_all())} == {"the database is locked by somebody else"}
        assert desk.read_now(keys) == {"schema_version"}
    assert desk.write_now(put, "a") == "a"
    assert desk.statistics().failures == 50
    desk.close_now()
    holder.close()


def test_a_full_disk_is_told_and_what_was_there_stays(sqlite_address):
    desk = Desk(open_database(sqlite_address))
    desk.write_now(put, "before")
    desk.write_now(lambda connection: connection.execute(text("PRAGMA max_page_count = 60")).all())
    with pytest.raises(DatabaseUnavailable, match="full"):
        desk.write_now(put, "much", value="v" * 1_000_000)
    assert desk.write_now(put, "little") == "little"
    assert desk.read_now(keys) == {"schema_version", "before", "little"}
    desk.close_now()


def test_files_that_may_not_grow_lose_nothing_and_are_written_again_once_they_may(sqlite_address):
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
def test_what_was_acknowledged_outlasts_a_killed_process(address, acknowledged):
    child = subprocess.Popen([*WRITER, address], stdout=subprocess.PIPE, text=True)
    told = [child.stdout.readline() for _ in range(acknowledged)]
    child.kill()
    told += child.communicate()[0].splitlines(keepends=True)
    database = open_database(address)
    with database.reading() as connection:
        found = keys(connection)
    database.close()
    assert {key.strip() for key in told if key.endswith("\n")} <= found
    assert len(found) <= len(told) + 1 + database_writer.CALLERS


def test_a_server_that_went_down_is_found_again(postgres_server, postgres_address):
    desk = Desk(open_database(postgres_address))
    desk.write_now(put, "a")
    postgres_server.stop()
    try:
        for call, args in ((desk.write_now, (put, "b")), (desk.read_now, (keys,))):
            with pytest.raises(DatabaseUnavailable):
                call(*args)
    finally:
        postgres_server.start()
    assert desk.write_now(put, "c") == "c"
    assert desk.read_now(keys) == {"schema_version", "a", "c"}
    desk.close_now()


def test_connections_that_the_server_ended_are_not_noticed(postgres_server, postgres_address):
    desk = Desk(open_database(postgres_address))
    desk.write_now(put, "a")
    desk.read_now(keys)
    postgres_server.stop()
    postgres_server.start()
    assert desk.read_now(keys) == {"schema_version", "a"}
    assert desk.write_now(put, "b") == "b"
    desk.close_now()


def test_a_deadlock_is_resolved_by_trying_again(postgres_address):
    other = open_database(postgres_address)
    desk = Desk(open_database(postgres_address))
    for key in "ab":
        desk.write_now(put, key, value="")
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
            # Only who waits for longest looks for a deadlock, and is ended: that is to be the desk.
            connection.execute(text("SET LOCAL deadlock_timeout = '10s'"))
            waiting.set()
            append(connection, "a", "2")

    thread = threading.Thread(target=backwards)
    thread.start()
    desk.write_now(forwards)
    thread.join()
    read = desk.read_now(
        lambda connection: connection.execute(select(META.c.value).where(META.c.key.in_(["a", "b"]))).all()
    )
    assert [value for (value,) in read] == ["21", "21"]
    assert desk.statistics().repeats == 1
    desk.close_now()
    other.close()
