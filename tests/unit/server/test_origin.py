"""Where requests come from."""

import pytest

from fakes.rsgi import SentHeaders
from tensorwasm.errors import HostDenied, InvalidArgs, OriginDenied
from tensorwasm.server.origin import Origins
from tensorwasm.settings.service import ServiceSettings


def origins(**settings):
    return Origins.from_settings(
        ServiceSettings.from_environment({f"TENSOR_WASM_API_{k}": v for k, v in settings.items()})
    )


HOSTS = origins(TRUSTED_HOSTS="api.example.org, LOCALHOST:8080,[::1]")
PAGES = origins(CORS_ALLOWED_ORIGINS="https://app.example.org,http://localhost:3000")


@pytest.mark.parametrize("host", ["api.example.org", "API.example.org:443", "localhost:8080", "[::1]:9000", "[::1]"])
def test_hosts_that_are_served(host):
    HOSTS.check_host(host)
    Origins().check_host(host)


@pytest.mark.parametrize(
    "host", [None, "", "example.org", "api.example.org.evil", "localhost", "localhost:81", "[::2]"]
)
def test_other_hosts_are_not(host):
    with pytest.raises(HostDenied):
        HOSTS.check_host(host)
    Origins().check_host(host)


@pytest.mark.parametrize("origin", [None, "https://evil.example", "null", "https://app.example.org:444", "*"])
def test_pages_from_elsewhere_may_nothing(origin):
    assert PAGES.cors(origin) == ()
    assert PAGES.preflight(origin, "authorization") == ()
    if origin is not None:
        with pytest.raises(OriginDenied):
            PAGES.check_page(origin)


PAGE = "https://app.example.org"


def test_pages_that_may_are_told_so():
    headers = SentHeaders(PAGES.cors(PAGE) + PAGES.preflight(PAGE, "authorization,content-type,x-stainless-os"))
    assert headers["access-control-allow-origin"] == PAGE
    assert headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
    assert "access-control-allow-credentials" not in headers
    PAGES.check_page(PAGE)
    PAGES.check_page(None)


@pytest.mark.parametrize("wanted", [None, "", "a\r\nset-cookie: b", "a:b", "é", "a" * 3000])
def test_only_names_of_fields_are_given_back(wanted):
    assert "access-control-allow-headers" not in SentHeaders(PAGES.preflight(PAGE, wanted))


SUBJECT = {"x-forwarded-client-cert": 'By=spiffe://x;Hash=aa;Subject="CN=client, O=\\"Org\\"";URI='}


def test_a_certificate_is_believed_from_trusted_proxies_only():
    trusting = origins(TRUSTED_XFCC_PROXIES="10.0.0.0/8, fd00::/8")
    assert trusting.certificate("10.1.2.3", SUBJECT) == 'CN=client, O=\\"Org\\"'
    assert trusting.certificate("fd00::1", SUBJECT) is not None
    for client in ("11.0.0.1", "::1", "unix:", ""):
        assert trusting.certificate(client, SUBJECT) is None
    assert Origins().certificate("10.1.2.3", SUBJECT) is None
    assert trusting.certificate("10.1.2.3", {}) is None
    assert trusting.certificate("10.1.2.3", {"x-forwarded-client-cert": "Hash=aa"}) is None


def test_a_network_that_is_none_is_refused():
    with pytest.raises(InvalidArgs, match="XFCC"):
        origins(TRUSTED_XFCC_PROXIES="10.0.0.0/99")
