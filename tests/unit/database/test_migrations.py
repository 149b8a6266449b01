"""Steps from one version of the tables to the next: all or none, once, and never backwards."""

import threading

import pytest
from sqlalchemy import insert, inspect, select, text

from tensorwasm.database.migrations import STEPS, VERSION_KEY, Step, migrate
from tensorwasm.database.opening import open_database
from tensorwasm.database.schema import META, METADATA
from tensorwasm.errors import DatabaseUnavailable, SchemaTooNew


def add_column(connection):
    connection.execute(text("ALTER TABLE meta ADD COLUMN colour VARCHAR(20) NOT NULL DEFAULT 'grey'"))


def fail(connection):
    raise DatabaseUnavailable("the disk of the database is full")


LATEST = 1 + len(STEPS)
COLOUR = Step(LATEST + 1, "facts have a colour", add_column)
MORE = (*STEPS, COLOUR)


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
    assert migrate(database, MORE) == LATEST + 1
    assert migrate(database, MORE) == LATEST + 1
    with database.reading() as connection:
        assert connection.execute(text("SELECT value, colour FROM meta WHERE key = 'name'")).one() == ("old", "grey")


def test_a_step_that_fails_leaves_nothing_of_those_before_it(database):
    with pytest.raises(DatabaseUnavailable):
        migrate(database, [*MORE, Step(LATEST + 2, "fails", fail)])
    assert version(database) == str(LATEST)
    assert "colour" not in columns(database)
    assert migrate(database, MORE) == LATEST + 1


def test_a_later_releases_database_is_refused_and_left_alone(database, address):
    migrate(database, MORE)
    with pytest.raises(SchemaTooNew, match=rf"version {LATEST + 1}.*up to {LATEST}"):
        open_database(address)
    assert version(database) == str(LATEST + 1)


def test_of_several_that_migrate_at_once_one_does(address):
    databases = [open_database(address) for _ in range(4)]
    steps = [*STEPS, Step(LATEST + 1, "counts", lambda connection: (add_column(connection), taken.append(1)))]
    taken, versions = [], []
    threads = [threading.Thread(target=lambda d=d: versions.append(migrate(d, steps))) for d in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for database in databases:
        database.close()
    assert (taken, versions) == ([1], [LATEST + 1] * 4)


def test_the_first_releases_tables_become_those_of_today(database):
    """What the steps make of an old database is what a new one is made as."""
    with database.writing() as connection:
        connection.execute(text("DROP TABLE servers"))
        connection.execute(text("DROP INDEX sessions_by_owner"))
        connection.execute(text("ALTER TABLE sessions DROP COLUMN owner"))
        connection.execute(text("ALTER TABLE sessions DROP COLUMN epoch"))
        connection.execute(text("UPDATE meta SET value = '1'"))
    assert migrate(database) == LATEST
    with database.reading() as connection:
        found = inspect(connection)
        for table in METADATA.sorted_tables:
            columns = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
            assert columns == {column.name: column.nullable for column in table.columns}
            assert {each["name"] for each in found.get_indexes(table.name)} >= {each.name for each in table.indexes}
