from __future__ import annotations

import ctypes
import importlib.util
import types
from importlib import metadata

import pytest
from wasmtime import _bindings

from tensorwasm.errors import EngineMismatch
from tensorwasm.guest.engine import capi


class Altered:
    """The real bindings with one thing changed."""

    def __init__(self, **changes: object) -> None:
        self._changes = changes

    def __getattr__(self, name: str) -> object:
        if name in self._changes:
            if self._changes[name] is None:
                raise AttributeError(name)
            return self._changes[name]
        return getattr(_bindings, name)


def test_the_installed_wasmtime_fits():
    assert capi.find_mismatches(_bindings) == []


@pytest.mark.parametrize("name", sorted(capi.FUNCTIONS))
def test_a_missing_function_is_named(name):
    assert f"{name} is missing" in capi.find_mismatches(Altered(**{"_" + name: None}))


@pytest.mark.parametrize("name", sorted(capi.FUNCTIONS))
def test_an_extra_argument_is_noticed(name):
    real = getattr(_bindings, "_" + name)
    changed = types.SimpleNamespace(restype=real.restype, argtypes=[*real.argtypes, ctypes.c_int])
    assert any(found.startswith(f"{name} is ") for found in capi.find_mismatches(Altered(**{"_" + name: changed})))


@pytest.mark.parametrize("name", sorted(capi.SIZES))
def test_a_structure_of_another_size_is_noticed(name):
    changed = ctypes.c_char * (capi.SIZES[name] + 8)
    found = capi.find_mismatches(Altered(**{name: changed}))
    assert f"{name} has {capi.SIZES[name] + 8} bytes, not {capi.SIZES[name]}" in found


def test_another_payload_offset_is_noticed():
    class Packed(ctypes.Structure):
        _fields_ = (("kind", ctypes.c_uint8), ("of", ctypes.c_char * 31))  # also as long as a value

    for name in ("wasmtime_extern_t", "wasmtime_val_t"):
        found = capi.find_mismatches(Altered(**{name: Packed}))
        assert found == [f"{name} has its payload elsewhere than at 8"]


def replace_callback(owner, place, kind):
    if isinstance(place, str):
        members = {**dict(getattr(_bindings, owner)._fields_), place: kind}
        return {owner: type(owner, (ctypes.Structure,), {"_fields_": tuple(members.items())})}
    real = getattr(_bindings, "_" + owner)
    argtypes = [kind if at == place else old for at, old in enumerate(real.argtypes)]
    return {"_" + owner: types.SimpleNamespace(restype=real.restype, argtypes=argtypes)}


@pytest.mark.parametrize("name", sorted(capi.CALLBACKS))
def test_another_callback_is_noticed(name):
    owner, place, _, _ = capi.CALLBACKS[name]
    found = capi.find_mismatches(Altered(**replace_callback(owner, place, ctypes.CFUNCTYPE(None, ctypes.c_int))))
    assert any(sentence.startswith(f"the {name} callback is void(i32)") for sentence in found)


@pytest.fixture
def found(monkeypatch, tmp_path):
    """Return a function: where wasmtime seems to be installed, None for nowhere."""

    def put(folder):
        locations = types.SimpleNamespace(submodule_search_locations=[str(folder)]) if folder is not None else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: locations)

    return put


def test_the_library_is_that_of_the_bindings():
    assert _bindings.dll._name == capi.LIBRARY


def test_a_release_without_a_library_for_this_system_is_refused(found, tmp_path):
    (tmp_path / f"wasmtime-{capi.WASMTIME_VERSION}.dist-info").mkdir()
    (tmp_path / "wasmtime" / "elsewhere-x86_64").mkdir(parents=True)
    found(tmp_path / "wasmtime")
    with pytest.raises(EngineMismatch, match="cannot be loaded"):
        capi._load()


def test_other_bindings_are_refused_before_anything_is_compiled(monkeypatch):
    capi.check_bindings()
    monkeypatch.setitem(capi.SIZES, "wasmtime_val_t", 31)
    capi.check_bindings.cache_clear()
    with pytest.raises(EngineMismatch, match="C API differs: wasmtime_val_t has 32 bytes, not 31"):
        capi.check_bindings()


def test_another_version_is_refused_with_the_remedy(found, monkeypatch, tmp_path):
    found(tmp_path)
    monkeypatch.setattr(metadata, "version", lambda _: "51.0.0")
    with pytest.raises(EngineMismatch, match=r"wasmtime 51\.0\.0 is installed.*pip install wasmtime==50\.0\.1"):
        capi._load()


def test_no_wasmtime_is_refused_with_the_remedy(found, monkeypatch):
    found(None)

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(EngineMismatch, match="cannot be loaded"):
        capi._load()


def test_a_function_outside_the_table_cannot_be_bound():
    with pytest.raises(KeyError):
        capi.bind("wasmtime_context_gc")
