"""The settings of the client commands."""

from __future__ import annotations

import os
from typing import Final

from tensorwasm.settings.parsing import Setting, flag, read, text

SERVER: Final = "http://127.0.0.1:8080"

CLIENT_SETTINGS: Final = (
    Setting("server", "TENSOR_WASM_SERVER", text, SERVER, "URL of the server that the client commands talk to."),
    Setting("token", "TENSOR_WASM_TOKEN", text, "", "Bearer token that the client commands send."),
    Setting(
        "require_key_perms",
        "TENSOR_WASM_REQUIRE_KEY_PERMS",
        flag,
        False,
        "1 refuses key files that other users of this machine can read, instead of printing a warning.",
    ),
)
_SERVER, _TOKEN, _KEY_PERMS = CLIENT_SETTINGS


def server() -> str:
    """Return the server's URL from the environment."""
    return str(read(_SERVER, os.environ))


def bearer() -> str:
    """Return the token from the environment; empty for none."""
    return str(read(_TOKEN, os.environ))


def require_key_perms() -> bool:
    """Return whether key files must be unreadable for others, or raise InvalidArgs for an invalid flag."""
    return bool(read(_KEY_PERMS, os.environ))
