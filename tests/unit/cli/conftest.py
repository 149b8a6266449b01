"""The command line in this process, with a server of the test's own."""

from dataclasses import dataclass

import pytest

from fakes.client import FakeServer
from tensorwasm.cli import entry
from tensorwasm.cli.remote import commands


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def server(monkeypatch):
    for name in ("TENSOR_WASM_TOKEN", "TENSOR_WASM_SERVER"):
        monkeypatch.delenv(name, raising=False)
    server = FakeServer()
    monkeypatch.setattr(commands, "Client", server.connect)
    return server


@pytest.fixture
def cli(capfd):
    """Run a command line, and return its exit code and output."""

    def run(*arguments):
        code = entry.dispatch([str(argument) for argument in arguments])
        return Done(code, *capfd.readouterr())

    return run
