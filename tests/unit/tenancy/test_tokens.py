"""Tokens as texts: made, digested, and read from an operator's list, without a part of them in any message."""

import base64
import logging
import re
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strategies.identity import entry_lists, list_texts, strong_tokens
from tensorwasm.errors import InvalidArgs
from tensorwasm.tenancy.authentication import StaticToken, digest, label, mint, parse_digests, parse_tokens

TOKEN = "operators-own-token-0001"
OTHER = "operators-own-token-0002"


def test_a_new_token_names_its_id_and_has_256_random_bits():
    minted = mint()
    found = re.fullmatch(r"tw_([a-z2-7]{16})_([A-Za-z0-9_-]{43})", minted.text)
    assert found
    assert found[1] == label(minted.id)
    assert base64.b32decode(found[1].upper()) == uuid.UUID(minted.id).bytes[:10]
    assert len(base64.urlsafe_b64decode(found[2] + "=")) == 32
    assert len({mint().text for _ in range(100)}) == 100


@pytest.mark.rule("14-hashed")
def test_a_stored_digest_does_not_contain_the_token():
    minted = mint()
    assert minted.digest == digest(minted.text)
    assert len(minted.digest) == 32
    assert minted.text.encode() not in minted.digest
    assert minted.text not in repr(minted)
    assert repr(minted.digest) not in repr(minted)
    assert repr(digest(TOKEN)) not in repr(StaticToken(1, digest(TOKEN), None))


@given(strong_tokens, strong_tokens)
def test_a_digest_identifies_its_token(one, other):
    assert (digest(one) == digest(other)) == (one == other)


@given(st.text())
def test_any_text_has_a_digest_and_none_outside_ascii_has_that_of_a_token(text):
    assert len(digest(text)) == 32
    assert (digest(text) == digest(TOKEN)) == (text == TOKEN)


@given(entry_lists)
@example([(TOKEN, frozenset({1, 2, 3}), f"{TOKEN}:tenant=1,2,3"), (OTHER, None, f"{OTHER}:tenant=*")])
def test_a_list_is_read_back_as_it_was_written(entries):
    found = parse_tokens(",".join(text for _, _, text in entries))
    assert [(each.digest, each.tenants) for each in found] == [(digest(token), chosen) for token, chosen, _ in entries]
    assert [each.place for each in found] == list(range(1, len(entries) + 1))


@given(list_texts)
@example(f"{TOKEN}:tenant=1,{OTHER}")
@example(":tenant=1")
@example(f"{TOKEN}:tenant=1,,2,")
def test_a_token_is_for_all_tenants_only_if_the_list_says_so(text):
    try:
        found = parse_tokens(text)
    except InvalidArgs:
        return
    bare = {digest(part.strip()) for part in text.split(",")}
    starred = {digest(part.partition(":tenant=")[0].strip()) for part in text.split(",") if part.strip().endswith("=*")}
    for each in found:
        assert each.tenants != frozenset()
        assert each.tenants is not None or each.digest in bare | starred


def test_a_token_without_tenants_is_for_all_with_a_warning(caplog):
    assert parse_tokens(TOKEN) == (StaticToken(1, digest(TOKEN), None),)
    assert "token 1 names no tenants" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "bad", ["x", "-1", "1.0", "18446744073709551616", "", "1,x", "1,*", "0x1", "1,1\u0663", "9" * 5000]
)
def test_an_entry_with_a_bad_tenant_is_left_out_alone_with_a_warning(bad, caplog):
    found = parse_tokens(f"{TOKEN}:tenant={bad},{OTHER}:tenant=7")
    assert found == (StaticToken(2, digest(OTHER), frozenset({7})),)
    assert "token 1 names a tenant that is no number" in caplog.text
    assert TOKEN not in caplog.text


def test_text_after_a_list_of_tenants_never_widens_the_token():
    assert parse_tokens(f"{TOKEN}:tenant=1,{OTHER}") == ()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("changeme", 1),
        ("changeme:tenant=*", 1),
        ("ChangeMe-ChangeMe-ChangeMe:tenant=1", 1),
        ("short:tenant=1", 1),
        (f"{TOKEN}:tenant=1,short:tenant=2", 2),
        (f"{TOKEN}:tenant=*,short", 2),
        (":tenant=1", 1),
        (f"{TOKEN}:tenants=1", 1),
        (f"{TOKEN} with spaces", 1),
        (f"{TOKEN}\u017f:tenant=1", 1),
    ],
)
def test_a_weak_or_invalid_token_is_refused_by_its_place(text, place, caplog):
    with pytest.raises(InvalidArgs, match=rf"TENSOR_WASM_API_TOKENS: token {place} ") as caught:
        parse_tokens(text)
    assert not any(part and part in str(caught.value) for part in (TOKEN, "short", "ChangeMe"))
    assert TOKEN not in caplog.text


def test_a_token_with_two_scopes_is_refused():
    with pytest.raises(InvalidArgs, match="tokens 1 and 2 are the same"):
        parse_tokens(f"{TOKEN}:tenant=1,{TOKEN}:tenant=2")


def test_a_list_without_tenants_is_read_as_digests_and_refused_likewise():
    assert parse_digests(f" {TOKEN}, ,{OTHER},", "V") == {digest(TOKEN), digest(OTHER)}
    with pytest.raises(InvalidArgs, match="V: token 2 can be guessed"):
        parse_digests(f"{TOKEN},changeme", "V")


@given(list_texts)
def test_logs_and_errors_contain_no_part_of_a_token(text):
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("tensorwasm.tenancy.authentication")
    logger.addHandler(handler)
    try:
        parse_tokens(f"secretsecretsecret{text}")
    except InvalidArgs as error:
        said.append(str(error))
    finally:
        logger.removeHandler(handler)
    assert "secretsecretsecret" not in "".join(said)
