"""Names of functions and aliases, and references to versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import InvalidName, NotFound
from tensorwasm.service.functions.checks import MAX_NAME_BYTES, checked_alias, checked_name, is_id, parse_reference

ids = st.uuids().map(str)
aliases = st.from_regex(r"[A-Za-z_][A-Za-z0-9._-]{0,63}", fullmatch=True)


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=64))
def test_text_without_control_characters_is_a_name_unless_it_is_blank(name):
    if name.strip():
        assert checked_name(name) == name
    else:
        with pytest.raises(InvalidName):
            checked_name(name)


@pytest.mark.parametrize("name", ["", " ", "\u2003", "a\n", "\0", "a\x7f", "\x85b", "\ud800", "é" * 129, "a" * 257])
def test_invalid_names(name):
    with pytest.raises(InvalidName):
        checked_name(name)


def test_the_longest_name():
    assert checked_name("é" * 128) == "é" * (MAX_NAME_BYTES // 2)


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=64).filter(str.strip)


@given(ids, st.integers(1, 999_999_999), aliases)
def test_references_by_id_have_one_reading(function_id, number, alias):
    assert parse_reference(function_id) == ((function_id, None, ""),)
    assert parse_reference(f"{function_id}@{number}") == ((function_id, number, ""),)
    assert checked_alias(alias) == alias
    assert parse_reference(f"{function_id}@{alias}") == ((function_id, None, alias),)
    with pytest.raises(NotFound):
        parse_reference(f"{function_id}@ {alias}")


@given(names.filter(lambda name: "@" not in name and not is_id(name)), st.integers(1, 999_999_999), aliases)
def test_references_by_name_are_the_whole_text_first(name, number, alias):
    assert parse_reference(name) == ((name, None, ""),)
    assert parse_reference(f"{name}@{number}") == ((f"{name}@{number}", None, ""), (name, number, ""))
    assert parse_reference(f"{name}@{alias}") == ((f"{name}@{alias}", None, ""), (name, None, alias))


@given(st.text(max_size=300) | ids.flatmap(lambda each: st.text(max_size=80).map(lambda rest: f"{each}@{rest}")))
def test_any_text_parses_to_valid_references_or_is_not_found(text):
    try:
        found = parse_reference(text)
    except NotFound:
        return
    assert 1 <= len(found) <= 2
    for reference in found:
        assert text.startswith(reference.function)
        assert not (reference.number and reference.alias)


@pytest.mark.parametrize("alias", ["", "1", "1a", "-a", "a" * 65, "a b", "é", "a@b"])
def test_invalid_aliases(alias):
    with pytest.raises(InvalidName):
        checked_alias(alias)
