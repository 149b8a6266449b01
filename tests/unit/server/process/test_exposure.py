"""Where a service may listen without authentication: on this machine, and only if the operator allows it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import InvalidArgs
from tensorwasm.server.process.address import check_exposure, is_loopback

LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST", "::ffff:127.0.0.1"]
PUBLIC = [
    "",
    "0.0.0.0",
    "::",
    "[::]",
    "10.0.0.1",
    "192.168.1.1",
    "example.com",
    "127.1",
    "localhost.example.com",
    "fe80::1%lo",
]
hosts = st.one_of(st.sampled_from(LOOPBACK + PUBLIC), st.ip_addresses().map(str), st.text(max_size=30))
flags = st.booleans()


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_addresses(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", PUBLIC)
def test_other_addresses_may_be_public(host):
    assert not is_loopback(host)


@pytest.mark.rule("14-exposure")
@given(hosts, flags, flags, flags)
def test_service_without_authentication_needs_one_setting_and_on_a_public_address_two(host, dev, public, auth):
    try:
        warning = check_exposure(host, dev_mode=dev, allow_public=public, has_auth=auth)
    except InvalidArgs:
        assert not auth
        assert not dev or not (is_loopback(host) or public)
        return
    assert bool(warning) == dev
    if not auth:
        assert dev
        assert is_loopback(host) or public


def test_no_tokens_are_not_dev_mode():
    with pytest.raises(InvalidArgs, match="there are no tokens"):
        check_exposure("127.0.0.1", dev_mode=False, allow_public=True, has_auth=False)


def test_a_refusal_says_what_to_do():
    with pytest.raises(InvalidArgs, match=r"127\.0\.0\.1.*TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC=1"):
        check_exposure("0.0.0.0", dev_mode=True, allow_public=False, has_auth=False)


def test_tokens_stay_in_force_in_dev_mode_with_a_warning():
    assert "no effect" in check_exposure("127.0.0.1", dev_mode=True, allow_public=False, has_auth=True)
    assert check_exposure("127.0.0.1", dev_mode=False, allow_public=False, has_auth=True) == ""
