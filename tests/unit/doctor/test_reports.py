"""Whole reports, as golden files: the machine, a line of dashes, and the report.

``TENSOR_WASM_UPDATE_GOLDEN=1 pytest tests/unit/doctor`` writes the second half anew.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from fakes.system import FakeSystem
from tensorwasm.doctor import Status, check_machine, render
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
def test_each_report_equals_its_golden_file(path):
    choice, system, expected = stage(path)
    text = render(check_machine(choice, system))
    if os.environ.get("TENSOR_WASM_UPDATE_GOLDEN"):
        machine = path.read_text(encoding="ascii").partition(CUT)[0]
        path.write_text(machine + CUT + text, encoding="ascii")
    else:
        assert text == expected


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
@pytest.mark.parametrize("choice", ["auto", "emulator", "cuda"])
def test_a_report_is_ok_only_if_the_device_works_and_no_check_failed(path, choice):
    _, system, _ = stage(path)
    found = check_machine(choice, system)
    failed = [row.check for row in found.rows if row.status is Status.FAIL]
    assert found.ok is not bool(failed)
    if found.ok:
        assert found.rows[-1].check == "load, launch, verify"
        assert found.rows[-1].status is Status.OK
    assert json.loads(json.dumps(asdict(found)))["ok"] is found.ok


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_no_check_of_gpus_fails_if_the_emulator_is_chosen(path):
    _, system, _ = stage(path)
    own = {"Python", "wasmtime", "numpy", "ml_dtypes"}
    failed = {row.check for row in check_machine("emulator", system).rows if row.status is Status.FAIL}
    assert failed <= own


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_failure_or_warning_has_a_cause_or_a_fix(path):
    choice, system, _ = stage(path)
    for row in check_machine(choice, system).rows:
        if row.status in {Status.FAIL, Status.WARN}:
            assert row.fix or row.diagnosis, row


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_opened_device_is_closed_without_allocations_or_modules(path):
    choice, system, _ = stage(path)
    check_machine(choice, system)
    assert system.opened
    for device in system.opened:
        assert device.closed
        assert (device.memory, device.modules) == ({}, [])


def test_there_is_a_scenario_for_every_platform():
    platforms = {stage(path)[1].platform for path in SCENARIOS}
    assert platforms == {"linux", "win32", "darwin"}


def test_an_unknown_device_is_refused_before_any_check():
    system = FakeSystem()
    with pytest.raises(InvalidArgs):
        check_machine("quantum", system)
    assert system.opened == []


def test_output_of_commands_is_printed_as_plain_ascii():
    system = FakeSystem(commands={"nvidia-smi": (9, "Fehler: Gerät \x1b[31mweg\x1b[0m\x07")})
    text = render(check_machine("emulator", system))
    assert text.isascii()
    assert "\x1b" not in text
