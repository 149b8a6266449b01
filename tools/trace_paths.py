"""Prints the files that a request, a deploy and a launch pass through, in the order in which they do.

A service is opened in this process and asked over a socket, with every call of a Python function recorded by
`sys.setprofile`, in all threads. Compiled host functions cannot be seen so: `COMPILED` says which follow which Python
function. Each path is measured several times, and the shortest counts: what an idle service does now and then is not
part of it. Files of the standard library and of other packages are left out.

    python tools/trace_paths.py [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = f"{ROOT / 'src' / 'tensorwasm'}{os.sep}"
TIMES: Final = 7
"""How often each path is measured."""

TIMEOUT_S: Final = 300
"""For an answer: the process that compiles a module has a low priority, and waits long on a busy machine."""

SETTLE_S: Final = 0.05
"""Pause after an answer, in which what follows it comes to rest and is not counted."""

RECORDED_NS: Final = 1_000_000_000
"""Time that a one-shot call on the event loop may take while it is recorded."""

COMPILED: Final = {
    "guest/sandbox/oneshot.py:run": "guest/native/oneshot.py",
    "guest/sandbox/oneshot_fiber.py:run": "guest/native/oneshot.py",
}
"""Compiled functions by the Python function that enters them."""


BEGIN: Final = ("server/pipeline.py", "begin")
"""File and function with which a request begins, once its head is parsed."""

END: Final = ("server/connection/request.py", "answer_written")
"""File and function whose last call sends the answer; metrics and audit follow it."""

LAUNCH: Final = ("guest/imports/cuda/kernels.py", "launch")
"""File and function with which a launch begins: the host function that the guest calls."""


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """What one measured path passed through.

    Attributes:
        files: in the order in which each was first entered.
        functions: how many different ones were called.
        returns: how often a file was entered again that had been left.
    """

    files: tuple[str, ...]
    functions: int
    returns: int


class Recorder:
    """Records calls of this package's functions, in every thread that starts after it."""

    def __init__(self) -> None:
        self.on = False
        self.calls: list[tuple[str, str]] = []
        self._names: dict[str, str] = {}
        threading.setprofile(self._take)
        sys.setprofile(self._take)

    def _take(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self.on:
            return
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            self.calls.append((code.co_filename, code.co_qualname if hasattr(code, "co_qualname") else code.co_name))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside."""
        self.calls = []
        self.on = True
        try:
            yield
        finally:
            self.on = False

    def path(self) -> MeasuredPath:
        """Return what was recorded last: of a request, from where its head is parsed to where its answer is sent."""
        files: dict[str, None] = {}
        functions = set()
        last, returns = "", 0
        found = [(name.removeprefix(PACKAGE), function.rsplit(".", 1)[-1]) for name, function in self.calls]
        first = found.index(BEGIN) if BEGIN in found else 0
        end = max((i for i, call in enumerate(found) if call == END), default=len(found) - 1)
        for name, function in self.calls[first : end + 1]:
            short = name.removeprefix(PACKAGE)
            functions.add((short, function))
            if short != last and short in files:
                returns += 1
            files.setdefault(short)
            last = short
            compiled = COMPILED.get(f"{short}:{function.rsplit('.', 1)[-1]}")
            if compiled is not None:
                files.setdefault(compiled)
                functions.add((compiled, ""))
        return MeasuredPath(tuple(files), len(functions), returns)


def shortest(recorder: Recorder, act: Callable[[], object]) -> MeasuredPath:
    """Return the path of an act with the fewest files and returns, of several times."""
    found = []
    for _ in range(TIMES):
        with recorder.recording():
            act()
        time.sleep(SETTLE_S)
        found.append(recorder.path())
    return min(found, key=lambda path: (len(path.files), path.returns, path.functions))


class Client:
    """A client of the service that asks over one connection; its own thread is not recorded."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._headers = {"authorization": f"Bearer {token}", "x-tensorwasm-tenant": "1"}

    def ask(self, method: str, path: str, body: bytes | str = b"", kind: str = "application/json") -> dict[str, Any]:
        """Return the answer.

        Raises:
            RuntimeError: it is no success.
        """
        data = body.encode() if isinstance(body, str) else body
        self._connection.request(method, path, data, self._headers | {"content-type": kind})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text.decode()[:300]}")
        found: dict[str, Any] = json.loads(text)
        return found


def _modules() -> dict[str, bytes]:
    from wasmtime import wat2wasm  # noqa: PLC0415 - as the service, which is imported late

    flush = '(import "wasi:tensor/host@0.1.0" "flush" (func $flush (result i32)))'
    return {
        "pure": bytes(wat2wasm('(module (func (export "main") (result i32) i32.const 7))')),
        "imports": bytes(wat2wasm(f'(module {flush} (func (export "main") (result i32) call $flush))')),
        "cuda": (ROOT / "examples/vector_add/vector_add.wasm").read_bytes(),
    }


def measure_service(recorder: Recorder) -> dict[str, MeasuredPath]:
    """Return the paths of a deploy and of invocations through a service."""
    from tensorwasm.runtime.invoke import inline  # noqa: PLC0415 - recorded from the start
    from tensorwasm.server.process.address import ListenAddress, listen  # noqa: PLC0415
    from tensorwasm.server.routes import ALL  # noqa: PLC0415
    from tensorwasm.server.serving import serve  # noqa: PLC0415
    from tensorwasm.service.opening import open_service  # noqa: PLC0415
    from tensorwasm.settings.service import ServiceSettings  # noqa: PLC0415
    from tensorwasm.telemetry.metrics import Metrics  # noqa: PLC0415

    paths: dict[str, MeasuredPath] = {}
    failures: list[BaseException] = []
    address, listening = listen(ListenAddress("127.0.0.1", 0))
    inline.ONE_SHOT_NS = RECORDED_NS  # type: ignore[misc] # recording makes short calls take longer than they may

    def ask(token: str) -> None:
        sys.setprofile(None)  # the client's own calls are not part of any path
        try:
            _ask(recorder, Client(address.port, token), paths)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            failures.append(error)
        finally:
            os.kill(os.getpid(), 15)

    async def run(folder: str) -> None:
        settings = ServiceSettings.from_environment(os.environ | {"TENSOR_WASM_DATA": folder})
        service = await open_service(settings, metrics=Metrics([(route.method, route.path) for route in ALL]))
        token = service.first_token.text if service.first_token is not None else ""

        def begin() -> None:
            threading.Thread(target=ask, args=(token,), daemon=True).start()

        try:
            await serve(service, listening, max_body_bytes=None, ready=begin)
        finally:
            await service.close()

    with listening, tempfile.TemporaryDirectory() as folder:
        os.environ["TENSOR_WASM_STATE_DIR"] = folder
        os.environ["TENSOR_WASM_DEVICE"] = "emulator"
        asyncio.run(run(folder))
    if failures:
        raise failures[0]
    return paths


def _ask(recorder: Recorder, client: Client, paths: dict[str, MeasuredPath]) -> None:
    made = _modules()
    names = iter(range(1000))

    def deploy(wasm: bytes, *, cuda: bool) -> str:
        import base64  # noqa: PLC0415 - the client's own

        body = {"name": f"f{next(names)}", "wasm_b64": base64.b64encode(wasm).decode()}
        if cuda:
            body["options"] = {"grants": ["cuda"]}  # type: ignore[assignment]
        return str(client.ask("POST", "/functions", json.dumps(body))["id"])

    ids = {name: deploy(wasm, cuda=name == "cuda") for name, wasm in made.items()}
    for name, function in ids.items():
        where = f"/functions/{function}/invoke"
        client.ask("POST", where, "{}")
        paths[f"invoke {name}"] = shortest(recorder, lambda where=where: client.ask("POST", where, "{}"))  # type: ignore[misc]
    paths["deploy"] = shortest(recorder, lambda: deploy(made["pure"], cuda=False))


def measure_launch(recorder: Recorder) -> MeasuredPath:
    """Return the path of a guest's launch, from the host function to the device's call, without compiled code."""
    os.environ["TENSOR_WASM_NATIVE"] = "off"
    from tensorwasm import Runtime  # noqa: PLC0415 - recorded from the start

    with Runtime("emulator") as runtime:
        function = runtime.load((ROOT / "examples/vector_add/vector_add.wasm").read_bytes())
        function.invoke(grants=("cuda",))
        with recorder.recording():
            function.invoke(grants=("cuda",))
    calls = recorder.calls
    if not any(file.endswith(LAUNCH[0]) for file, _ in calls):
        raise RuntimeError(f"no launch among {len(calls)} calls, of which the last are {calls[-40:]}")
    begins = next(i for i, (file, name) in enumerate(calls) if file.endswith(LAUNCH[0]) and name.endswith(LAUNCH[1]))
    ends = next(i for i in range(begins, len(calls)) if "/gpu/emulator/" in calls[i][0])
    recorder.calls = calls[begins : ends + 1]
    return recorder.path()


def measure() -> dict[str, MeasuredPath]:
    """Return every path by its name."""
    recorder = Recorder()
    paths = measure_service(recorder)
    paths["launch"] = measure_launch(recorder)
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the paths; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args(arguments)
    paths = measure()
    if asked.json:
        print(json.dumps({name: asdict(path) for name, path in paths.items()}, indent=1))
        return 0
    for name, path in paths.items():
        print(f"{name}: {len(path.files)} files, {path.functions} functions, {path.returns} returns")
        for file in path.files:
            print(f"    {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
