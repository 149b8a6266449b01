"""Databases for tests: each of SQLite and PostgreSQL, new and empty."""

import pytest

from fakes import postgres
from fakes.blocking import BlockingExecutor
from tensorwasm.database.engine.opening import open_database, sqlite_url


@pytest.fixture(scope="session")
def postgres_server():
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.running() as server:
        yield server


@pytest.fixture
def sqlite_address(tmp_path):
    return sqlite_url(tmp_path / "data" / "service.db")


@pytest.fixture
def postgres_address(postgres_server):
    return postgres_server.empty()


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request):
    """The URL of a database that was not opened yet."""
    if request.param == "sqlite":
        return request.getfixturevalue("sqlite_address")
    return request.getfixturevalue("postgres_address")


@pytest.fixture
def database(address):
    database = open_database(address)
    yield database
    database.close()


@pytest.fixture
def executor(address):
    executor = BlockingExecutor(open_database(address))
    yield executor
    executor.close_now()
