"""What the tests of the service share."""

import pytest

from tensorwasm import Runtime


@pytest.fixture(scope="session")
def runtime():
    with Runtime("emulator") as runtime:
        yield runtime
