"""Files of keys, as the commands are given them: 64 hexadecimal digits, or 32 bytes as they are."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from tensorwasm.cli.showing import warn
from tensorwasm.errors import InvalidKey
from tensorwasm.settings.client import require_key_perms

KEY_BYTES: Final = 32

_MOST_BYTES: Final = 4096
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_HEX: Final = re.compile(rb"[0-9a-fA-F]{64}")


def read_key(path: Path) -> bytes:
    """Return the key in a file: 32 bytes. One that others of this machine may read is warned of, or refused.

    Raises:
        InvalidKey: the file cannot be read, has no key in it, or is open to others although
            TENSOR_WASM_REQUIRE_KEY_PERMS is set. The message has nothing of the key.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise InvalidKey(f"cannot read {path}: {getattr(error, 'strerror', 'no such path')}") from None
    if mode & _OTHERS and os.name == "posix":
        open_to_others = f"{path} is open to others (mode {mode:o}): chmod 600"
        if require_key_perms():
            raise InvalidKey(open_to_others)
        warn(open_to_others)
    if len(data) == KEY_BYTES:
        return data
    if not _HEX.fullmatch(data.strip()):
        raise InvalidKey(f"{path} has neither 64 hexadecimal digits nor {KEY_BYTES} bytes in it")
    return bytes.fromhex(data.strip().decode("ascii"))
