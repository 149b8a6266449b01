"""Migrations: all steps or none, once, and never backwards."""

import threading

import pytest
from sqlalchemy import insert, inspect, select, text

from tensorwasm.database.engine.opening import STEPS, VERSION_KEY, MigrationStep, migrate, open_database
from tensorwasm.database.schema import META, METADATA
from tensorwasm.errors import DatabaseUnavailable, SchemaTooNew


def add_column(connection):
    connection.execute(text("ALTER TABLE meta ADD COLUMN colour VARCHAR(20) NOT NULL DEFAULT 'grey'"))


def fail(connection):
    raise DatabaseUnavailable("the disk of the database is full")


LATEST = 1 + len(STEPS)
COLOUR = MigrationStep(LATEST + 1, "facts have a colour", add_column)
MORE = (*STEPS, COLOUR)


def upgrade(database, *steps):
    with database.writing() as connection:
        return migrate(connection, *steps)


def version(database):
    with database.reading() as connection:
        return connection.execute(select(META.c.value).where(META.c.key == VERSION_KEY)).scalar_one()


def columns(database):
    with database.reading() as connection:
        return {column["name"] for column in inspect(connection).get_columns("meta")}


def test_a_new_database_is_of_the_latest_version(database):
    assert version(database) == str(upgrade(database))


def test_an_old_database_is_migrated_and_keeps_its_rows(database):
    with database.writing() as connection:
        connection.execute(insert(META).values(key="name", value="old"))
    assert upgrade(database, MORE) == LATEST + 1
    assert upgrade(database, MORE) == LATEST + 1
    with database.reading() as connection:
        assert connection.execute(text("SELECT value, colour FROM meta WHERE key = 'name'")).one() == ("old", "grey")


def test_a_failing_step_undoes_the_steps_before_it(database):
    with pytest.raises(DatabaseUnavailable):
        upgrade(database, [*MORE, MigrationStep(LATEST + 2, "fails", fail)])
    assert version(database) == str(LATEST)
    assert "colour" not in columns(database)
    assert upgrade(database, MORE) == LATEST + 1


def test_a_later_releases_database_is_refused_and_left_alone(database, address):
    upgrade(database, MORE)
    with pytest.raises(SchemaTooNew, match=rf"version {LATEST + 1}.*up to {LATEST}"):
        open_database(address)
    assert version(database) == str(LATEST + 1)


def test_of_several_concurrent_migrations_one_runs(address):
    databases = [open_database(address) for _ in range(4)]
    steps = [*STEPS, MigrationStep(LATEST + 1, "counts", lambda connection: (add_column(connection), taken.append(1)))]
    taken, versions = [], []
    threads = [threading.Thread(target=lambda d=d: versions.append(upgrade(d, steps))) for d in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for database in databases:
        database.close()
    assert (taken, versions) == ([1], [LATEST + 1] * 4)


def test_the_first_releases_tables_migrate_to_todays(database):
    """What the steps make of an old database is what a new one is made as."""
    with database.writing() as connection:
        connection.execute(text("DROP TABLE servers"))
        connection.execute(text("DROP INDEX sessions_by_owner"))
        connection.execute(text("ALTER TABLE sessions DROP COLUMN owner"))
        connection.execute(text("ALTER TABLE sessions DROP COLUMN epoch"))
        connection.execute(text("UPDATE meta SET value = '1'"))
    assert upgrade(database) == LATEST
    with database.reading() as connection:
        found = inspect(connection)
        for table in METADATA.sorted_tables:
            columns = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
            assert columns == {column.name: column.nullable for column in table.columns}
            assert {each["name"] for each in found.get_indexes(table.name)} >= {each.name for each in table.indexes}
