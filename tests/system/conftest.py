"""Real servers in processes of their own."""

import pytest

from servers import running_server


@pytest.fixture
def start_server(tmp_path):
    """Return a function that starts a server of its own, with further arguments, to be used in `with`."""

    def start(*arguments, data=None, **more):
        return running_server(data or tmp_path / "data", *arguments, **more)

    return start


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server for all tests: they must not depend on what is in it."""
    with running_server(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def start_module_server(tmp_path_factory):
    """Return a function that starts a server with an environment, for a fixture of a whole module."""

    def start(**environment):
        return running_server(tmp_path_factory.mktemp("server") / "data", environment=environment)

    return start


@pytest.fixture
def client(server):
    """A client of the shared server, with the administrator's token."""
    with server.client() as client:
        yield client
