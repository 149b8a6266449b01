from importlib import metadata

import pytest

from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import SETTINGS, Settings, package_version
from tensorwasm.values import MIB, Limits


def test_an_empty_environment_gives_the_defaults():
    settings = Settings.from_environment({})
    assert [getattr(settings, s.field) for s in SETTINGS] == [s.default for s in SETTINGS]


def test_variables_are_ours_and_unique():
    names = [setting.variable for setting in SETTINGS]
    assert len(set(names)) == len(names)
    assert [name for name in names if not name.startswith("TENSOR_WASM_")] == ["CUDA_ARCH"]  # NVIDIA's tools' own


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TENSOR_WASM_TIMEOUT", "soon"),
        ("TENSOR_WASM_TIMEOUT", "nan"),
        ("TENSOR_WASM_TIMEOUT", "-1"),
        ("TENSOR_WASM_TIMEOUT", "inf"),
        ("TENSOR_WASM_MEMORY", "0"),
        ("TENSOR_WASM_TIMEOUT", "1e305"),
        ("TENSOR_WASM_MEMORY", "4097"),
        ("TENSOR_WASM_POOL_SLOTS", "9e9"),
        ("TENSOR_WASM_TRACEBACK", "perhaps"),
        ("CUDA_ARCH", "ampere"),
        ("CUDA_ARCH", "80"),
        ("TENSOR_WASM_NATIVE", "perhaps"),
        ("TENSOR_WASM_GPU_MEMORY", "swap"),
        ("TENSOR_WASM_MULTIPROCESSORS", "0"),
        ("TENSOR_WASM_GPU_QUOTA", "0"),
        ("TENSOR_WASM_GPU_SESSION", "0"),
        ("TENSOR_WASM_CODE_CACHE", "-1"),
        ("TENSOR_WASM_CODE_CACHE", "off"),
        ("TENSOR_WASM_COMPILE_TIMEOUT", "0"),
        ("TENSOR_WASM_COMPILE_MEMORY", "0"),
    ],
)
def test_a_bad_value_is_refused_by_name(variable, text):
    with pytest.raises(InvalidArgs, match=variable):
        Settings.from_environment({variable: text})


def test_white_space_counts_as_unset():
    assert Settings.from_environment({"TENSOR_WASM_DEVICE": "  "}).device == "auto"
    assert Settings.from_environment({"TENSOR_WASM_DEVICE": " cuda:1 "}).device == "cuda:1"


def test_every_setting_changes_its_field():
    changed = {
        "device": ("cuda:1", "cuda:1"),
        "timeout_s": ("2.5", 2.5),
        "memory_mib": ("4096", 4096),
        "pool_slots": ("7", 7),
        "guest_threads": ("3", 3),
        "offload_threads": ("5", 5),
        "offload_shadow": ("7", 7),
        "warm_sandboxes": ("9", 9),
        "emulator_memory_mib": ("12", 12),
        "emulator_arch": ("sm_100a", (10, 0)),
        "emulator_ptx": ("8.4", (8, 4)),
        "cuda_arch": ("sm_103", (10, 3)),
        "native": ("On", "on"),
        "cache": ("/var/cache/ours", "/var/cache/ours"),
        "code_cache_mib": ("0", 0),
        "kernel_cache_mib": ("0", 0),
        "isolation": ("guarded", "guarded"),
        "compile_timeout_s": ("5", 5.0),
        "compile_memory_mib": ("512", 512),
        "compile_room_mib": ("2048", 2048),
        "state": ("/var/lib/ours", "/var/lib/ours"),
        "snapshot_cache_mib": ("0", 0),
        "stack_kib": ("64", 64),
        "module_mib": ("3", 3),
        "output_mib": ("0", 0),
        "stdin_mib": ("0", 0),
        "snapshot_key": ("hmac:" + "ab" * 32, "hmac:" + "ab" * 32),
        "snapshot_trust": ("ed25519-public:/etc/key.pem", "ed25519-public:/etc/key.pem"),
        "snapshot_cipher_key": ("cd" * 32, "cd" * 32),
        "gpu_memory": ("vmm", "vmm"),
        "gpu_quota_mib": ("24", 24),
        "gpu_session_mib": ("65536", 65536),
        "multiprocessors": ("16", 16),
        "artifacts": ("s3://bucket/prefix", "s3://bucket/prefix"),
        "artifacts_quota_mib": ("64", 64),
        "artifacts_count": ("100", 100),
        "ptxas": ("/opt/ptxas", "/opt/ptxas"),
        "traceback": ("true", True),
    }
    assert set(changed) == {setting.field for setting in SETTINGS}
    for setting in SETTINGS:
        text, value = changed[setting.field]
        assert value != setting.default
        assert getattr(Settings.from_environment({setting.variable: text}), setting.field) == value
    assert Settings.from_environment({"TENSOR_WASM_MEMORY": "2", "TENSOR_WASM_TIMEOUT": "9"}).limits() == Limits(
        memory_bytes=2 * MIB, wall_s=9
    )


def test_the_package_has_a_version_even_if_it_is_not_installed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    assert package_version() == metadata.version("tensor-wasm")
    monkeypatch.setattr(metadata, "version", missing)
    assert package_version() == "source"


def test_settings_show_no_keys():
    variables = [setting.variable for setting in SETTINGS if "_KEY" in setting.variable or "TRUST" in setting.variable]
    settings = Settings.from_environment(dict.fromkeys(variables, "ab" * 32))
    assert len(variables) == 3
    assert "abab" not in repr(settings)
