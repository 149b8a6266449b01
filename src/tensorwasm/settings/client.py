"""The settings of the client commands."""

from __future__ import annotations

import os
from typing import Final

from tensorwasm.settings.parsing import Setting, flag, read, text

CLIENT_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("token", "TENSOR_WASM_TOKEN", text, "", "Bearer token that the client commands send."),
    Setting(
        "require_key_perms",
        "TENSOR_WASM_REQUIRE_KEY_PERMS",
        flag,
        False,
        "1 refuses files of keys that others of this machine may read, instead of warning of them.",
    ),
)


def bearer() -> str:
    """Return the token of this process's environment; empty for none.

    Raises:
        InvalidArgs: it is no text.
    """
    return str(read(CLIENT_SETTINGS[0], os.environ))


def require_key_perms() -> bool:
    """Return whether files of keys must be closed to others.

    Raises:
        InvalidArgs: it is no flag.
    """
    return bool(read(CLIENT_SETTINGS[1], os.environ))
