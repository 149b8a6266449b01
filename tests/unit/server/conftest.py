"""A whole service behind a pipeline, without a network."""

from functools import partial

import pytest

from fakes.applications import serving


@pytest.fixture
def served(tmp_path):
    """Return a function that opens a service and its application: ``async with served() as (service, pipeline)``."""
    return partial(serving, tmp_path)
