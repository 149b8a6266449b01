"""Each diagnosis as a golden file: the message, a line of dashes, and the cause and fix.

``TENSOR_WASM_UPDATE_GOLDEN=1 pytest tests/unit/doctor`` writes the second half anew.
"""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.doctor import DIAGNOSES, diagnose
from tensorwasm.gpu.cuda.driver.calls import MEANINGS, DriverFailure, describe

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "doctor" / "diagnoses"
CUT = "\n" + "-" * 80 + "\n"

LINKER_AND_LOADER = {
    "libcuda.so: cannot open shared object file: No such file or directory": "libcuda-not-found",
    "cuda.dll was not found": "nvcuda-not-found",
    "failed to run custom build command for `cust v0.3.2`": "build-without-toolkit",
    "LINK : fatal error LNK1181: cannot open input file 'cuda.lib'": "no-import-library",
}
DRIVER_AND_TOOLKIT = {
    "CUDA driver version is insufficient for CUDA runtime version (error 35)": "old-driver-for-toolkit",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (error 803) at first cuInit": "driver-mismatch",
    "ptxas not found": "no-ptxas",
    "error: nvcc fatal : Could not find ptxas": "no-ptxas",
    "nvcc fatal : Unsupported gpu architecture 'compute_80'": "architecture-not-the-gpus",
    "nvcc fatal : Unsupported gpu architecture 'compute_90'": "architecture-newer-than-toolkit",
}
DEVICE_AT_RUN_TIME = {
    "no CUDA-capable device is detected (error 100)": "no-device",
    "CUDA_ERROR_NO_DEVICE (error 100)": "no-device-headless",
    "cuda runtime error: out of memory": "out-of-memory",
    "cudaErrorIllegalAddress": "illegal-address",
}
WSL2 = {
    "WSL/Windows could not load the dynamic library 'libcuda.so.1'": "wsl-libcuda",
    "nvidia-smi: command not found (inside WSL)": "wsl-nvidia-smi",
}
BUILDING = {
    "Unable to find libclang: \"couldn't find any valid shared libraries matching: ['libclang.dll']\"": "no-libclang",
    "fatal error: 'cuda.h' file not found": "no-cuda-header",
    "error: linker 'link.exe' not found": "no-msvc-linker",
    "error[E0432]: unresolved import cuda_core::sys": "unresolved-bindings",
}
PYTHON = {
    "ModuleNotFoundError: No module named 'cuda'": "unresolved-bindings",
    "ModuleNotFoundError: No module named 'cuda.bindings'": "unresolved-bindings",
    "ERROR: Failed building wheel for cuda-bindings": "build-without-toolkit",
    "error: Microsoft Visual C++ 14.0 or greater is required.": "no-msvc-linker",
    "OSError: libcuda.so.1: cannot open shared object file: No such file or directory": "libcuda-not-found",
    "Could not find module 'nvcuda.dll' (or one of its dependencies).": "nvcuda-not-found",
    "bash: nvidia-smi: command not found": "nvidia-smi-not-found",
    "torch.AcceleratorError: CUDA error: all CUDA-capable devices are busy or unavailable": "busy-device",
    "nvcc fatal   : Unsupported gpu architecture 'compute_70'": "architecture-dropped",
    "nvcc fatal   : Unsupported gpu architecture 'compute_120'": "architecture-newer-than-toolkit",
}


@pytest.mark.parametrize(
    ("message", "name"),
    (LINKER_AND_LOADER | DRIVER_AND_TOOLKIT | DEVICE_AT_RUN_TIME | WSL2 | BUILDING | PYTHON).items(),
)
def test_a_known_message_is_diagnosed(message, name):
    found = diagnose(message)
    assert found is not None
    assert found.name == name
    assert diagnose(f"Traceback:\n  {message.upper()}\nmore") == found, "at any position, in any case"


@pytest.mark.parametrize("row", DIAGNOSES, ids=lambda row: row.name)
def test_each_diagnosis_equals_its_golden_file(row):
    path = GOLDEN / f"{row.name}.txt"
    if os.environ.get("TENSOR_WASM_UPDATE_GOLDEN"):
        path.write_text(f"{row.message}{CUT}{row.group}\nwhy: {row.cause}\nfix: {row.fix}\n", encoding="ascii")
    message, _, expected = path.read_text(encoding="ascii").partition(CUT)
    found = diagnose(message)
    assert found is row, "an earlier row takes the message"
    assert f"{found.group}\nwhy: {found.cause}\nfix: {found.fix}\n" == expected


def test_every_golden_file_has_a_diagnosis():
    assert {path.stem for path in GOLDEN.iterdir()} == {row.name for row in DIAGNOSES}


def test_names_are_unique_and_causes_are_sentences():
    assert len({row.name for row in DIAGNOSES}) == len(DIAGNOSES)
    for row in DIAGNOSES:
        assert row.cause.endswith("."), row.name
        assert row.fix, row.name
        assert f"{row.message}{row.cause}{row.fix}".isascii(), row.name


@pytest.mark.parametrize("code", [34, 35, 46, 100, 802, 803, 804, 805, 807, 808, 809, 2, 700])
def test_our_own_message_for_an_error_of_the_driver_is_diagnosed(code):
    assert code in MEANINGS
    found = diagnose(describe(DriverFailure("cuInit", code)).partition("; ")[0])
    assert found is not None
    assert re.search(found.pattern, f"(error {code} from cuInit)") or found.name == "no-device"


@given(st.text(max_size=300))
def test_any_text_can_be_diagnosed(text):
    found = diagnose(text)
    assert found is None or found in DIAGNOSES


def test_long_hostile_text_is_diagnosed_quickly():
    diagnose("Unsupported gpu architecture '" * 20_000 + "failed to build " * 20_000)
