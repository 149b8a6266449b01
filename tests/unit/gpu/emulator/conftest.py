import pytest

from fakes.emulation import Emulation


@pytest.fixture
def emulation():
    return Emulation()
