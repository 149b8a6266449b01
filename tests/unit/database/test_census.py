"""Counting what there is, in each database."""

from sqlalchemy import insert

from tensorwasm.database.census import Census, take_census
from tensorwasm.database.schema import FUNCTIONS


def test_an_empty_database_has_nothing(desk):
    assert desk.read_now(take_census) == Census()


def test_functions_of_all_tenants_are_counted(desk):
    def add(connection, number):
        row = {"id": str(number), "tenant": str(number), "name": "a", "current": 1}
        connection.execute(insert(FUNCTIONS).values(row | {"created_unix_ms": 1, "updated_unix_ms": 1}))

    for number in range(3):
        desk.write_now(add, number)
    assert desk.read_now(take_census) == Census(functions=3)
