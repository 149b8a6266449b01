"""The settings of the client commands."""

from __future__ import annotations

import os
from typing import Final

from tensorwasm.settings.parsing import Setting, flag, read, text

SERVER: Final = "http://127.0.0.1:8080"

CLIENT_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("server", "TENSOR_WASM_SERVER", text, SERVER, "URL of the server that the client commands talk to."),
    Setting("token", "TENSOR_WASM_TOKEN", text, "", "Bearer token that the client commands send."),
    Setting(
        "require_key_perms",
        "TENSOR_WASM_REQUIRE_KEY_PERMS",
        flag,
        False,
        "1 refuses files of keys that others of this machine may read, instead of warning of them.",
    ),
)


def server() -> str:
    """Return the URL of the server that this process's environment names.

    Raises:
        InvalidArgs: it is no text.
    """
    return str(_read("server"))


def bearer() -> str:
    """Return the token of this process's environment; empty for none.

    Raises:
        InvalidArgs: it is no text.
    """
    return str(_read("token"))


def require_key_perms() -> bool:
    """Return whether files of keys must be closed to others.

    Raises:
        InvalidArgs: it is no flag.
    """
    return bool(_read("require_key_perms"))


def _read(field: str) -> object:
    return read(next(each for each in CLIENT_SETTINGS if each.field == field), os.environ)
