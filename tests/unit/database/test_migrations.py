"""Steps from one version of the tables to the next: all or none, once, and never backwards."""

import threading

import pytest
from sqlalchemy import insert, inspect, select, text

from tensorwasm.database.migrations import VERSION_KEY, Step, migrate
from tensorwasm.database.opening import open_database
from tensorwasm.database.schema import META
from tensorwasm.errors import DatabaseUnavailable, SchemaTooNew


def add_column(connection):
    connection.execute(text("ALTER TABLE meta ADD COLUMN colour VARCHAR(20) NOT NULL DEFAULT 'grey'"))


def fail(connection):
    raise DatabaseUnavailable("the disk of the database is full")


COLOUR = Step(2, "facts have a colour", add_column)


def version(database):
    with database.reading() as connection:
        return connection.execute(select(META.c.value).where(META.c.key == VERSION_KEY)).scalar_one()


def columns(database):
    with database.reading() as connection:
        return {column["name"] for column in inspect(connection).get_columns("meta")}


def test_a_new_database_is_of_the_latest_version(database):
    assert version(database) == str(migrate(database))


def test_an_old_database_takes_the_steps_that_it_lacks_and_keeps_its_rows(database):
    with database.writing() as connection:
        connection.execute(insert(META).values(key="name", value="old"))
    assert migrate(database, [COLOUR]) == 2
    assert migrate(database, [COLOUR]) == 2
    with database.reading() as connection:
        assert connection.execute(text("SELECT value, colour FROM meta WHERE key = 'name'")).one() == ("old", "grey")


def test_a_step_that_fails_leaves_nothing_of_those_before_it(database):
    with pytest.raises(DatabaseUnavailable):
        migrate(database, [COLOUR, Step(3, "fails", fail)])
    assert version(database) == "1"
    assert "colour" not in columns(database)
    assert migrate(database, [COLOUR]) == 2


def test_a_later_releases_database_is_refused_and_left_alone(database, address):
    migrate(database, [COLOUR])
    with pytest.raises(SchemaTooNew, match=r"version 2.*up to 1"):
        open_database(address)
    assert version(database) == "2"


def test_of_several_that_migrate_at_once_one_does(address):
    databases = [open_database(address) for _ in range(4)]
    steps = [Step(2, "counts", lambda connection: (add_column(connection), taken.append(1)))]
    taken, versions = [], []
    threads = [threading.Thread(target=lambda d=d: versions.append(migrate(d, steps))) for d in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for database in databases:
        database.close()
    assert (taken, versions) == ([1], [2] * 4)
