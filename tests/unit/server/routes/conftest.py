"""What the tests of the routes share."""

import pytest

from fakes.administration import Office
from tensorwasm.database.engine.opening import sqlite_url


@pytest.fixture
def office(tmp_path):
    office = Office(sqlite_url(tmp_path / "data" / "service.db"))
    yield office
    office.close()
