"""Decoders of typed messages are built while modules are imported, by one thread.

msgspec describes a type when a decoder is first built for it; a second thread that builds one meanwhile takes the
unfinished description, and the process ends with SIGSEGV.
"""

import ast
import subprocess
import sys
from pathlib import Path

import tensorwasm

SOURCES = Path(tensorwasm.__file__).parent
READ_AT_ONCE = """
import sys, threading
from tensorwasm.artifacts.catalog import CatalogEntry, TenantCatalog, decode, encode

sys.setswitchinterval(1e-6)
entry = CatalogEntry("wasm", 1, 1, "raw", "0" * 64 + "-" + "0" * 16, 1, ())
catalog = TenantCatalog({bytes(32): entry})
data, start, found = encode(catalog, bytes(16)), threading.Barrier(8), []

def read():
    start.wait()
    found.append(decode(data))

threads = [threading.Thread(target=read) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert found == [catalog] * 8
"""


def test_threads_that_read_the_first_catalogs_at_once_all_get_them():
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", READ_AT_ONCE], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_no_call_builds_a_decoder_of_a_type_each_time():
    """Calls with ``type=`` would do so, by the first thread that comes; each is also slower than a decoder."""
    found = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"msgspec.json.decode", "msgspec.msgpack.decode", "msgspec.convert"}
        and any(each.arg == "type" for each in node.keywords)
    ]
    assert not found
