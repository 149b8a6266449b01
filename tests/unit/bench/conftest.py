"""What benchmarks leave behind is gone when the tests of a module have ended."""

import pytest

from tensorwasm import settings


@pytest.fixture(autouse=True, scope="module")
def _own_settings():
    """Take back the settings that a benchmark gives its process."""
    given = dict(settings._given)
    yield
    settings._given.clear()
    settings._given.update(given)
    settings.current.cache_clear()
