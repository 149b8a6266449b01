"""Whole reports, as golden files: the machine, a line of dashes, and what the doctor says of it.

``TENSOR_WASM_UPDATE_GOLDEN=1 pytest tests/unit/doctor`` writes the second half anew.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from fakes.system import FakeSystem
from tensorwasm.doctor import Status, render, report
from tensorwasm.errors import InvalidArgs

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "doctor"
SCENARIOS = sorted(GOLDEN.glob("*.txt"))
CUT = "\n" + "-" * 80 + "\n"


def stage(path: Path) -> tuple[str, FakeSystem, str]:
    """Return the choice, the machine and the expected text of a golden file."""
    machine, _, expected = path.read_text(encoding="ascii").partition(CUT)
    fields = json.loads(machine)
    if "python" in fields:
        fields["python"] = tuple(fields["python"])
    return fields.pop("choice"), FakeSystem(**fields), expected


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_report_is_the_golden_one(path):
    choice, system, expected = stage(path)
    said = render(report(choice, system))
    if os.environ.get("TENSOR_WASM_UPDATE_GOLDEN"):
        machine = path.read_text(encoding="ascii").partition(CUT)[0]
        path.write_text(machine + CUT + said, encoding="ascii")
    else:
        assert said == expected


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
@pytest.mark.parametrize("choice", ["auto", "emulator", "cuda"])
def test_a_report_is_ok_exactly_if_the_device_works_and_nothing_failed(path, choice):
    _, system, _ = stage(path)
    found = report(choice, system)
    failed = [row.check for row in found.rows if row.status is Status.FAIL]
    assert found.ok is not bool(failed)
    if found.ok:
        assert found.rows[-1].check == "load, launch, verify"
        assert found.rows[-1].status is Status.OK
    assert json.loads(json.dumps(asdict(found)))["ok"] is found.ok


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_without_a_gpu_that_was_asked_for_nothing_about_gpus_fails(path):
    _, system, _ = stage(path)
    own = {"Python", "wasmtime", "numpy", "ml_dtypes"}
    failed = {row.check for row in report("emulator", system).rows if row.status is Status.FAIL}
    assert failed <= own


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_failed_or_warns_says_what_to_do(path):
    choice, system, _ = stage(path)
    for row in report(choice, system).rows:
        if row.status in {Status.FAIL, Status.WARN}:
            assert row.fix or row.diagnosis, row


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_device_that_was_opened_is_closed_with_nothing_left_on_it(path):
    choice, system, _ = stage(path)
    report(choice, system)
    assert system.opened
    for device in system.opened:
        assert device.closed
        assert (device.memory, device.modules) == ({}, [])


def test_there_is_a_scenario_for_every_platform():
    platforms = {stage(path)[1].platform for path in SCENARIOS}
    assert platforms == {"linux", "win32", "darwin"}


def test_an_unknown_device_is_refused_before_anything_is_looked_at():
    system = FakeSystem()
    with pytest.raises(InvalidArgs):
        report("quantum", system)
    assert system.opened == []


def test_strange_output_of_commands_is_printed_as_plain_ascii():
    system = FakeSystem(commands={"nvidia-smi": (9, "Fehler: Gerät \x1b[31mweg\x1b[0m\x07")})
    text = render(report("emulator", system))
    assert text.isascii()
    assert "\x1b" not in text
