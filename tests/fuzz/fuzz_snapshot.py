"""Damage snapshot files at random, and sign half of them again, and see that each is refused politely, or understood.

    python tests/fuzz/fuzz_snapshot.py --seconds 60 --seed 0

The same seed makes the same files. What is not signed again has to be refused. Exits 1 at the first file that is not,
or that raises anything but our own errors; it is left in the folder this is started from.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import CipherKey, Ed25519Key, HmacKey, KeyRing
from tensorwasm.artifacts.sealed.header import HEADER_BYTES, SIGNED_BYTES
from tensorwasm.artifacts.snapshot.file import SnapshotFile
from tensorwasm.errors import InvalidSnapshot, SealRefused, TooLarge

GOLDEN = Path(__file__).parents[1] / "golden" / "snapshots"
KEY = bytes(range(32))
KEYS = {1: HmacKey(KEY), 2: Ed25519Key(KEY)}
RING = KeyRing.of(HmacKey(KEY), Ed25519Key(KEY).public, ciphers=[CipherKey(KEY)])
ODD = [bytes(8), b"\xff" * 8, struct.pack("<Q", 1 << 63), struct.pack("<Q", 1 << 31), b"\x01" + bytes(7)]


def damage(rng: random.Random, good: bytes) -> bytes:
    """Return other bytes: some changed, cut out, put in or moved."""
    data = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind < 3:
            data[at] = rng.randrange(256) if kind else data[at] ^ 1 << rng.randrange(8)
        elif kind == 3:
            odd = rng.choice(ODD)[: len(data) - at]
            data[at : at + len(odd)] = odd
        elif kind == 4:
            del data[at : at + rng.randrange(1, 100)]
            data = data or bytearray(b"\0")
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 20))
    return bytes(data)


def sign(rng: random.Random, data: bytes) -> bytes:
    """Return the file as somebody with the key would have made it: body's hash, lengths and signature are right."""
    if len(data) < HEADER_BYTES or data[14] not in KEYS:
        return data
    header, body = bytearray(data[:SIGNED_BYTES]), data[HEADER_BYTES:]
    if rng.random() < 0.9:
        header[120:128] = struct.pack("<Q", len(body))
        header[128:160] = blake3(body)
    return bytes(header) + KEYS[data[14]].sign(bytes(header)).ljust(64, b"\0") + body


def read(path: Path) -> bool:
    """Read all of a file; return whether it was understood."""
    try:
        with SnapshotFile.open(path, RING) as snapshot:
            snapshot.load()
            snapshot.check_content()
    except (SealRefused, InvalidSnapshot, TooLarge):
        return False
    return True


def main() -> int:
    """Damage until the time is up; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    goods = [path.read_bytes() for path in sorted(GOLDEN.glob("*/*.tws"))]
    until = time.monotonic() + options.seconds
    tried = understood = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged"
        path.touch()
        while time.monotonic() < until:
            good = rng.choice(goods)
            data = damage(rng, good)
            signed = rng.random() < 0.5
            data = sign(rng, data) if signed else data
            with path.open("r+b") as file:
                file.write(data)
                file.truncate()
            tried += 1
            try:
                found = read(path)
                assert not found or signed or data == good, "damage was not seen"
            except Exception:  # noqa: BLE001 - whatever it is, it is what this looks for
                traceback.print_exc()
                kept = Path("fuzz_snapshot.failed.tws")
                kept.write_bytes(data)
                sys.stderr.write(f"file {tried} of seed {options.seed} failed; it is in {kept}\n")
                return 1
            understood += found
    sys.stdout.write(f"{tried} files, {understood} of them understood, none of them trouble\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
