"""Run public test suites through TensorWasm, and report every difference from wasmtime.

``python tools/suites.py spec FOLDER`` runs scripts of the WebAssembly core test suite (``*.wast``). They are converted
by ``wasm-tools json-from-wast`` or, where that is not installed, by ``wast2json`` of WABT. Scripts whose modules import
nothing run through the product: `tensorwasm.Runtime`, one live instance a module. Scripts that link modules, or need
``spectest``, run at engine level: wasmtime with the proposals that the product's engine has. What fails is run by
wasmtime as it comes, too: a command that fails there as well, or needs a proposal that the product leaves off, does
not count as a failure.

``python tools/suites.py wasi FOLDER`` runs programs of WASI preview 1 in the layout of WebAssembly/wasi-testsuite: a
``NAME.json`` beside ``NAME.wasm`` has arguments, environment, folders, exit code and output. Each runs by
``tensor-wasm run`` and by wasmtime: ``--wasmtime`` or one on the PATH, else the package's own class.

The exit code is 1 if anything fails that wasmtime passes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import wasmtime

from tensorwasm import Limits, Runtime
from tensorwasm.errors import GuestError, TensorWasmError, UnsupportedProposal
from tensorwasm.guest.engine.engine import PROPOSALS
from tensorwasm.wasm.preamble import scan

CONVERTERS: Final = {"wasm-tools": ["json-from-wast", "--wasm-dir", "{folder}"], "wast2json": ["--enable-all"]}
NUMBERS: Final = frozenset({"i32", "i64", "f32", "f64"})
LIMITS: Final = Limits(wall_s=60.0, memory_bytes=1 << 32)
PROGRAM_S: Final = 60.0
SPECTEST: Final = """(module
  (global (export "global_i32") i32 (i32.const 666)) (global (export "global_i64") i64 (i64.const 666))
  (global (export "global_f32") f32 (f32.const 666.6)) (global (export "global_f64") f64 (f64.const 666.6))
  (table (export "table") 10 20 funcref) (memory (export "memory") 1 2)
  (func (export "print")) (func (export "print_i32") (param i32)) (func (export "print_i64") (param i64))
  (func (export "print_f32") (param f32)) (func (export "print_f64") (param f64))
  (func (export "print_i32_f32") (param i32 f32)) (func (export "print_f64_f64") (param f64 f64)))"""
"""What every script of the suite may import."""


@dataclass(slots=True)
class Tally:
    """The result of a suite."""

    passed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.passed += other.passed
        self.skipped += other.skipped
        self.failures += other.failures


class Skipped(Exception):
    """A command cannot be run here; the message says why."""


# ---------------------------------------------------------------------------------------------------- core suite


def convert(script: Path, to: Path, converter: str) -> list[dict[str, Any]]:
    """Return the commands of a script; its modules are files in a folder.

    Raises:
        Skipped: the converter rejects the script.
    """
    out = to / "commands.json"
    options = [each.replace("{folder}", str(to)) for each in CONVERTERS[converter]]
    done = subprocess.run(
        [converter, *options, str(script), "-o", str(out)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Skipped(f"{converter} rejects the script")
    commands: list[dict[str, Any]] = json.loads(out.read_text())["commands"]
    return commands


class Product:
    """Modules of a script as live instances of the product."""

    def __init__(self, runtime: Runtime) -> None:
        """Begin without a module."""
        self._runtime = runtime
        self._named: dict[str | None, Any] = {}

    def load(self, wasm: bytes, name: str | None) -> None:
        """Instantiate a module and make it the current one."""
        opened = self._runtime.load(wasm, limits=LIMITS).open()
        self._named[None] = opened
        if name is not None:
            self._named[name] = opened

    def call(self, name: str | None, export: str, args: Sequence[Any]) -> list[Any]:
        """Call an export of a module."""
        return list(self._named[name].call(export, list(args)).values)

    def read(self, _name: str | None, _export: str) -> Any:
        """Refuse: the product shows no globals."""
        raise Skipped("the product shows no globals")

    def register(self, _name: str | None, _as_name: str) -> None:
        """Refuse: such scripts run at engine level."""
        raise AssertionError

    def close(self) -> None:
        """End all instances."""
        for opened in set(self._named.values()):
            opened.close()


class Engine:
    """Modules of a script in one store of wasmtime, with the product's proposals."""

    def __init__(self, proposals: Mapping[str, bool]) -> None:
        """Begin with ``spectest`` alone, and with some proposals other than as they come."""
        config = wasmtime.Config()
        for name, on in proposals.items():
            if isinstance(getattr(wasmtime.Config, name, None), property):
                setattr(config, name, on)
        self._engine = wasmtime.Engine(config)
        self._store = wasmtime.Store(self._engine)
        self._linker = wasmtime.Linker(self._engine)
        self._linker.allow_shadowing = True
        self._named: dict[str | None, Any] = {}
        spectest = wasmtime.Module(self._engine, SPECTEST)
        self._linker.define_instance(self._store, "spectest", self._linker.instantiate(self._store, spectest))

    def load(self, wasm: bytes, name: str | None) -> None:
        """Instantiate a module and make it the current one."""
        made = self._linker.instantiate(self._store, wasmtime.Module(self._engine, wasm))
        self._named[None] = made
        if name is not None:
            self._named[name] = made

    def call(self, name: str | None, export: str, args: Sequence[Any]) -> list[Any]:
        """Call an export of a module."""
        found = self._named[name].exports(self._store)[export](self._store, *args)
        return found if isinstance(found, list) else [] if found is None else [found]

    def read(self, name: str | None, export: str) -> Any:
        """Return the value of an exported global."""
        return self._named[name].exports(self._store)[export].value(self._store)

    def register(self, name: str | None, as_name: str) -> None:
        """Let later modules import from one."""
        self._linker.define_instance(self._store, as_name, self._named[name])

    def close(self) -> None:
        """End the store."""
        self._store.close()


OFF: Final = r"memory64|multi-memory|multiple memories|gc|function.references|threads|shared|custom.page"
"""How wasmtime's errors name a proposal that the product leaves off."""
USES: Final = r"uses (?:the )?([\w-]+)"
"""How the product's own errors name it."""
REFUSED: Final = (TensorWasmError, wasmtime.WasmtimeError, wasmtime.Trap)
TRAPPED: Final = (GuestError, wasmtime.Trap)


def run_script(script: Path, runtime: Runtime, converter: str) -> Tally:
    """Run the commands of one script."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            commands = convert(script, Path(folder), converter)
        except Skipped as why:
            return Tally(skipped=Counter([str(why)]))
        links = _links(commands, Path(folder))
        passed, skipped, failed = _run(commands, Engine(PROPOSALS) if links else Product(runtime), Path(folder))
        tally = Tally(passed, skipped)
        if failed:
            bare = _run(commands, Engine({}), Path(folder))[2]
            pinned = failed if links else _run(commands, Engine(PROPOSALS), Path(folder))[2]
        for line, failure in failed.items():
            if line in bare:
                tally.skipped["wasmtime does not pass it either"] += 1
            elif off := _off(failure, script, refused=line in pinned):
                tally.skipped[f"a proposal that is off: {off}"] += 1
            else:
                tally.failures.append(f"{script.name}:{line}: {failure}")
    return tally


def _off(failure: str, script: Path, *, refused: bool) -> str | None:
    """Return the proposal because of which a module was refused, None if another reason caused it.

    Args:
        failure: what failed.
        script: the script.
        refused: an engine with the product's proposals refuses the module as well; it accepts ``externref``.
    """
    if UnsupportedProposal.__name__ in failure:
        found = re.search(USES, failure)
        return found[1] if found and (refused or found[1] in script.read_text(errors="replace")) else None
    found = re.search(OFF, failure, re.IGNORECASE) if refused else None
    return found[0] if found else None


def _run(
    commands: Sequence[Mapping[str, Any]], host: Product | Engine, folder: Path
) -> tuple[int, Counter[str], dict[int, str]]:
    """Return how many commands passed, which were skipped, and the failures by line."""
    passed, skipped, failed = 0, Counter[str](), {}
    for command in commands:
        try:
            COMMANDS[command["type"]](command, host, folder)
            passed += 1
        except Skipped as why:
            skipped[str(why)] += 1
        except KeyError:
            skipped["its module was rejected, or the command is unknown"] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, this command failed and the next may not
            failed[command["line"]] = f"{command['type']}: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    host.close()
    return passed, skipped, failed


def _links(commands: Sequence[Mapping[str, Any]], folder: Path) -> bool:
    """Return whether a script's modules import anything."""
    if any(each["type"] == "register" for each in commands):
        return True
    files = [folder / each["filename"] for each in commands if each["type"] == "module" and "filename" in each]
    try:
        return any(scan(file.read_bytes()).imports for file in files)
    except TensorWasmError:
        return False


def _module(command: Mapping[str, Any], host: Product | Engine, folder: Path) -> None:
    host.load((folder / command["filename"]).read_bytes(), command.get("name"))


def _refused(command: Mapping[str, Any], host: Product | Engine, folder: Path) -> None:
    if command.get("module_type", "binary") != "binary":
        raise Skipped("the converter handles text modules")
    try:
        host.load((folder / command["filename"]).read_bytes(), "refused")
    except REFUSED:
        return
    raise AssertionError(f"accepted instead of rejected: {command['text']}")


def _act(action: Mapping[str, Any], host: Product | Engine) -> list[Any]:
    if action["type"] == "get":
        return [host.read(action.get("module"), action["field"])]
    return host.call(action.get("module"), action["field"], [_value(each) for each in action["args"]])


def _action(command: Mapping[str, Any], host: Product | Engine, _folder: Path) -> None:
    _act(command["action"], host)


def _returns(command: Mapping[str, Any], host: Product | Engine, _folder: Path) -> None:
    expected = command["expected"]
    for each in expected:
        if each["type"] not in NUMBERS:
            raise Skipped(f"{each['type']} in a signature")
    found = _act(command["action"], host)
    if len(found) != len(expected) or not all(map(_same, expected, found)):
        raise AssertionError(f"{found!r} instead of {[each.get('value') for each in expected]}")


def _traps(command: Mapping[str, Any], host: Product | Engine, _folder: Path) -> None:
    try:
        found = _act(command["action"], host)
    except TRAPPED:
        return
    raise AssertionError(f"{found!r} instead of a trap: {command['text']}")


def _register(command: Mapping[str, Any], host: Product | Engine, _folder: Path) -> None:
    host.register(command.get("name"), command["as"])


COMMANDS: Final[Mapping[str, Callable[[Mapping[str, Any], Product | Engine, Path], None]]] = {
    "module": _module,
    "action": _action,
    "assert_return": _returns,
    "assert_trap": _traps,
    "assert_exhaustion": _traps,
    "assert_invalid": _refused,
    "assert_malformed": _refused,
    "assert_unlinkable": _refused,
    "assert_uninstantiable": _refused,
    "register": _register,
}


def _value(argument: Mapping[str, str]) -> Any:
    """Return an argument; the suite writes each as an integer with its bits."""
    type_ = argument["type"]
    if type_ not in NUMBERS:
        raise Skipped(f"{type_} in a signature")
    bits = int(argument["value"])
    if type_ == "i32":
        return bits - ((bits & 0x80000000) << 1)
    if type_ == "i64":
        return bits - ((bits & 0x8000000000000000) << 1)
    number = struct.unpack("<f" if type_ == "f32" else "<d", bits.to_bytes(4 if type_ == "f32" else 8, "little"))[0]
    if math.isnan(number) and bits not in {0x7FC00000, 0x7FF8000000000000}:
        raise Skipped("the bits of a NaN among the arguments")
    return number


def _same(expected: Mapping[str, str], found: Any) -> bool:
    type_, text = expected["type"], expected["value"]
    if text.startswith("nan:"):
        return isinstance(found, float) and math.isnan(found)
    bits = int(text)
    if type_ in {"i32", "i64"}:
        return bool((found - bits) % (1 << int(type_[1:])) == 0)
    size = 4 if type_ == "f32" else 8
    number = struct.unpack("<f" if size == 4 else "<d", bits.to_bytes(size, "little"))[0]
    if math.isnan(number):
        return math.isnan(found)
    return struct.pack("<f" if size == 4 else "<d", found) == bits.to_bytes(size, "little")


def run_spec(options: argparse.Namespace) -> Tally:
    """Run every script under a folder."""
    converter = options.converter or next((each for each in CONVERTERS if shutil.which(each)), None)
    if converter is None:
        sys.exit("neither wasm-tools nor wast2json (WABT) is on the PATH: one of them converts the scripts")
    total = Tally()
    print(f"converter: {converter}")
    with Runtime("emulator") as runtime:
        for script in sorted(options.folder.glob("**/*.wast")):
            tally = run_script(script, runtime, converter)
            name, failed = script.relative_to(options.folder), len(tally.failures)
            print(f"{name}: {tally.passed} passed, {failed} failed", flush=True)
            total.add(tally)
    return total


# ---------------------------------------------------------------------------------------------------------- WASI


@dataclass(frozen=True, slots=True)
class Program:
    """One program of a WASI suite, with its manifest.

    Attributes:
        wasm: the module.
        args: its arguments, without the program's name.
        env: its variables.
        folders: names of folders beside it, which the guest sees under the same names.
        exit_code: expected exit code.
        stdout: expected output; None for any.
    """

    wasm: Path
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    exit_code: int = 0
    stdout: str | None = None

    @classmethod
    def read(cls, wasm: Path) -> Program:
        """Read a program's manifest; without one it has no arguments and must exit with 0."""
        manifest = wasm.with_suffix(".json")
        fields = json.loads(manifest.read_text()) if manifest.exists() else {}
        folders = fields.get("dirs") or ([fields["root"]] if "root" in fields else [])
        return cls(
            wasm,
            tuple(fields.get("args", ())),
            tuple(fields.get("env", {}).items()),
            tuple(folders),
            int(fields.get("exit_code", 0)),
            fields.get("stdout"),
        )

    def passes(self, ended: Ended) -> bool:
        """Return whether exit code and output are as expected."""
        code, out = ended
        return code == self.exit_code and (self.stdout is None or out == self.stdout)


Ended = tuple[int, str]
Command = Callable[[Program, Path], list[str]]


def _product(program: Program, folder: Path) -> list[str]:
    options = [part for name in program.folders for part in ("--dir", f"{folder / name}::{name}")]
    options += [part for name, value in program.env for part in ("--env", f"{name}={value}")]
    return [sys.executable, "-m", "tensorwasm.cli", "run", *options, str(program.wasm), "--", *program.args]


def _wasmtime(binary: str) -> Command:
    def command(program: Program, folder: Path) -> list[str]:
        options = [part for name in program.folders for part in ("--dir", f"{folder / name}::{name}")]
        options += [part for name, value in program.env for part in ("--env", f"{name}={value}")]
        return [binary, "run", *options, str(program.wasm), *program.args]

    return command


def _package(program: Program, folder: Path) -> list[str]:
    order = json.dumps(
        {
            "wasm": str(program.wasm),
            "argv": [program.wasm.name, *program.args],
            "env": program.env,
            "folders": [(str(folder / name), name) for name in program.folders],
        }
    )
    return [sys.executable, __file__, "peer", order]


def run_peer(order: Mapping[str, Any]) -> int:
    """Run one program by wasmtime's own package, and return its exit code."""
    engine = wasmtime.Engine()
    store, linker, config = wasmtime.Store(engine), wasmtime.Linker(engine), wasmtime.WasiConfig()
    linker.define_wasi()
    config.argv, config.env = order["argv"], [tuple(each) for each in order["env"]]
    config.inherit_stdin()
    config.inherit_stdout()
    config.inherit_stderr()
    for host, guest in order["folders"]:
        config.preopen_dir(host, guest)
    store.set_wasi(config)
    instance = linker.instantiate(store, wasmtime.Module.from_file(engine, order["wasm"]))
    try:
        instance.exports(store)["_start"](store)
    except wasmtime.ExitTrap as ended:
        return int(ended.code)
    except wasmtime.Trap as trap:
        sys.stderr.write(f"{trap}\n")
        return 134
    return 0


def run_program(program: Program, command: Command) -> Ended:
    """Run a program over a copy of its folders."""
    with tempfile.TemporaryDirectory() as copy:
        for name in program.folders:
            shutil.copytree(program.wasm.parent / name, Path(copy) / name, symlinks=True)
        try:
            line = command(program, Path(copy))
            done = subprocess.run(line, capture_output=True, stdin=subprocess.DEVNULL, timeout=PROGRAM_S, check=False)
        except subprocess.TimeoutExpired:
            return -1, ""
    return done.returncode, done.stdout.decode(errors="replace")


def run_wasi(options: argparse.Namespace) -> Tally:
    """Run every program under a folder by the product and by wasmtime."""
    binary = options.wasmtime or shutil.which("wasmtime")
    peer = _wasmtime(binary) if binary else _package
    package = f"the package wasmtime {importlib.metadata.version('wasmtime')}"
    print(f"peer: {binary or package}", flush=True)
    tally = Tally()
    for program in _programs(options.folder):
        ours, theirs = run_program(program, _product), run_program(program, peer)
        where = program.wasm.relative_to(options.folder)
        if program.passes(ours):
            tally.passed += 1
            if not program.passes(theirs):
                print(f"{where}: passed here; wasmtime ends with exit code {theirs[0]}, wrote {theirs[1][:100]!r}")
        elif not program.passes(theirs):
            tally.skipped[f"wasmtime does not pass it either: {where}"] += 1
        else:
            failure = f"exit code {ours[0]} instead of {program.exit_code}, wrote {ours[1][:100]!r}"
            tally.failures.append(f"{where}: {failure}")
    return tally


def _programs(folder: Path) -> Iterator[Program]:
    for wasm in sorted(folder.glob("**/*.wasm")):
        if "fs-tests.dir" not in wasm.parts:
            yield Program.read(wasm)


def main() -> int:
    """Run the suite that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="suite", required=True)
    spec = parts.add_parser("spec", help="scripts of the WebAssembly core test suite")
    spec.add_argument(
        "--converter", choices=CONVERTERS, help="the program that converts scripts to modules and commands"
    )
    wasi = parts.add_parser("wasi", help="programs of WASI preview 1")
    wasi.add_argument("--wasmtime", help="the binary to compare with")
    for part in (spec, wasi):
        part.add_argument("folder", type=Path, help="the suite's checkout")
    parts.add_parser("peer").add_argument("order")
    options = parser.parse_args()
    if options.suite == "peer":
        return run_peer(json.loads(options.order))
    tally = run_spec(options) if options.suite == "spec" else run_wasi(options)
    for line in tally.failures:
        print(f"FAILED {line}")
    for why, count in tally.skipped.items():
        print(f"skipped {count}: {why}")
    print(f"{tally.passed} passed, {len(tally.failures)} failed, {sum(tally.skipped.values())} skipped")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
