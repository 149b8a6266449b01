"""Numbers of records, in each database."""

from sqlalchemy import insert

from tensorwasm.database.schema import FUNCTIONS
from tensorwasm.database.usage import RecordCounts, count_records


def test_an_empty_database_counts_zero(executor):
    assert executor.read_now(count_records) == RecordCounts()


def test_functions_of_all_tenants_are_counted(executor):
    def add(connection, number):
        row = {"id": str(number), "tenant": str(number), "name": "a", "current": 1}
        connection.execute(insert(FUNCTIONS).values(row | {"created_unix_ms": 1, "updated_unix_ms": 1}))

    for number in range(3):
        executor.write_now(add, number)
    assert executor.read_now(count_records) == RecordCounts(functions=3)
