"""An HTTP client for one command: requests to a server, its answers as JSON, its errors as ours."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from tensorwasm import settings
from tensorwasm.cli.options import without_none
from tensorwasm.cli.output import clean, warn
from tensorwasm.errors import EndpointMissing, InvalidArgs, Refused, ServerUnreachable
from tensorwasm.settings import package_version

if TYPE_CHECKING:
    import httpx

CONNECT_S: Final = 5.0
READ_S: Final = 120.0
"""Longest silence of a server; a command that waits for longer work passes its own timeout."""

MAX_TENANT: Final = (1 << 64) - 1

_PAGE: Final = 100
"""Records requested at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options that choose a server and a tenant, as Typer reads them; the token is in the environment alone."""

    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            "--addr",
            metavar="URL",
            help=f"The server. [env: TENSOR_WASM_SERVER; default: {settings.SERVER}]",
        ),
    ] = None
    tenant: Annotated[int, typer.Option(metavar="NUMBER", help="For which tenant; 0 leaves that to the token.")] = 0
    ca_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates (PEM) to trust besides the system's.")
    ] = None
    client_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Own certificate and its private key (PEM), to be shown.")
    ] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Take any certificate.")] = False


class Client:
    """A connection to a server, whose methods block; invalid options or an invalid token raise InvalidArgs."""

    def __init__(self, options: ServerOptions, transport: httpx.BaseTransport | None = None) -> None:
        import httpx  # noqa: PLC0415 - keeps --help quick

        if not 0 <= options.tenant <= MAX_TENANT:
            raise InvalidArgs("--tenant is a number from 0 to 2**64 - 1")
        token = settings.bearer()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidArgs("TENSOR_WASM_TOKEN is printable ASCII without spaces")
        url = checked_server((settings.server() if options.server is None else options.server).rstrip("/"))
        loopback = is_loopback(url.host)
        headers = {"User-Agent": f"tensor-wasm/{package_version()}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
            if url.scheme == "http" and not loopback:
                warn(f"the token is sent to {clean(url.host)} in the clear: use https")
        if options.tenant:
            headers["X-TensorWasm-Tenant"] = str(options.tenant)
        if options.insecure:
            warn("--insecure: anyone on the network path can read and change everything")
        self._http = httpx.Client(
            base_url=url,
            headers=headers,
            verify=_trust(options) if url.scheme == "https" else False,
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
            transport=transport,
            trust_env=not loopback,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        """Send a request and return the JSON of the answer, or None if the answer has no body.

        Args:
            method: HTTP method.
            path: path of the route, quoted already.
            body: value to send as JSON; None sends no body.
            options: ``content``, ``headers``, ``params`` and ``timeout`` of httpx.

        Raises:
            Refused: the server refuses or fails, or its answer is not JSON.
            EndpointMissing: the server has no such route.
            ServerUnreachable: the server does not answer.
        """
        answer = self.fetch(method, path, body, **options)
        return parse_json(answer.content) if answer.content else None

    def fetch(self, method: str, path: str, body: object = None, **options: Any) -> httpx.Response:
        """Send a request as `call` does, and return the answer with any content."""
        with self.open(method, path, body, **options) as answer:
            answer.read()
        return answer

    @contextmanager
    def open(self, method: str, path: str, body: object = None, **options: Any) -> Iterator[httpx.Response]:
        """Send a request as `call` does, and yield the answer before its body has arrived."""
        import httpx  # noqa: PLC0415 - keeps --help quick

        if body is not None:
            options["content"] = json.dumps(body, allow_nan=False)
            options["headers"] = {"Content-Type": "application/json", **options.get("headers", {})}
        try:
            with self._http.stream(method, path, **options) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _refusal(answer)
                yield answer
        except httpx.TimeoutException:
            raise ServerUnreachable("the server does not answer in time") from None
        except (httpx.ConnectError, httpx.InvalidURL, OSError) as error:
            raise ServerUnreachable(f"the server cannot be reached: {clean(error)}") from None
        except httpx.HTTPError as error:
            raise ServerUnreachable(f"the connection to the server broke off: {clean(error)}") from None

    def list_records(self, name: str, limit: int, path: str | None = None, **query: Any) -> list[Mapping[str, Any]]:
        """Return records of a list, requested page by page; a limit below 1 raises InvalidArgs.

        Args:
            name: field of a page that has its records.
            limit: most records that are returned.
            path: path of the list; ``/name`` by default.
            query: further parameters; those that are None are left out.
        """
        if limit < 1:
            raise InvalidArgs("--limit is at least 1")
        records: list[Mapping[str, Any]] = []
        after = None
        while len(records) < limit:
            params = without_none(limit=min(limit - len(records), _PAGE), after=after, **query)
            page = self.call("GET", path or f"/{name}", params=params)
            records += (found := records_of(page, name))
            if not found or (after := page.get("next")) is None:
                break
        return records[:limit]


def parse_json(data: bytes) -> Any:
    """Return the value of an answer in JSON, or raise Refused."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise malformed("the server's answer is not JSON") from None


def malformed(message: str) -> Refused:
    """Return the error for an answer that breaks the protocol."""
    return Refused(message, "malformed_answer")


def field_of(answer: object, name: str) -> Any:
    """Return a field of an answer, or raise Refused."""
    if not isinstance(answer, Mapping) or name not in answer:
        raise malformed(f"the server's answer has no {name}")
    return answer[name]


def text_of(answer: object, name: str) -> str:
    """Return a field of an answer as one line of text."""
    return clean(field_of(answer, name))


def records_of(page: object, name: str) -> list[Mapping[str, Any]]:
    """Return the records in a field of an answer, or raise Refused."""
    found = field_of(page, name)
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        raise malformed(f"the server's answer has no list of {name}")
    return found


def checked_server(text: str) -> httpx.URL:
    """Return the URL of a server, or raise InvalidArgs."""
    import httpx  # noqa: PLC0415 - keeps --help quick

    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query or url.fragment:
        raise InvalidArgs("the server is a URL such as https://host:8443, without a user, a query or a fragment")
    return url


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, judged by its text alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _trust(options: ServerOptions) -> Any:
    """Return an SSL context that trusts the system's roots and the given certificates, and shows the given one."""
    import ssl  # noqa: PLC0415 - keeps --help quick

    context = ssl.create_default_context()
    if options.ca_cert is not None:
        try:
            context.load_verify_locations(cafile=options.ca_cert)
        except OSError as error:  # ssl.SSLError is one
            raise InvalidArgs(f"--ca-cert: the file has no certificates: {error.strerror or error}") from None
    if options.client_cert is not None:
        try:
            context.load_cert_chain(options.client_cert, password="")  # or OpenSSL would ask on the terminal
        except OSError as error:
            raise InvalidArgs(f"--client-cert: no certificate with its key: {error.strerror or error}") from None
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _refusal(answer: httpx.Response) -> Exception:
    """Return the error for an answer that is not a success."""
    if answer.status_code == 404 and answer.headers.get("X-TensorWasm-Route") == "none":
        return EndpointMissing("the server has no such endpoint: it is another release, or another program")
    try:
        error = parse_json(answer.content)["error"]
        kind, message = clean(error["kind"]), clean(error["message"])
    except (Refused, KeyError, TypeError):
        status = answer.status_code
        return Refused(f"the server answers {status}, without an error of TensorWasm", status=status)
    if answer.status_code == 401 and "Authorization" not in answer.request.headers:
        message += " (TENSOR_WASM_TOKEN is not set)"
    return Refused(message, kind or "refused", answer.status_code, error)
