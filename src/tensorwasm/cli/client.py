"""What the commands that talk to a server have in common: their options, one HTTP client, and errors as exit codes.

Nothing that a server sends reaches the terminal with its control characters.
"""

from __future__ import annotations

import inspect
import ipaddress
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec, Self, TypeVar, cast

import typer

from tensorwasm.cli.answers import parse_json
from tensorwasm.cli.showing import clean, warn
from tensorwasm.errors import EndpointMissing, InvalidArgs, Refused, ServerUnreachable
from tensorwasm.settings import client as settings
from tensorwasm.settings import package_version

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")

CONNECT_S: Final = 5.0
READ_S: Final = 120.0
"""How long a server may say nothing; a command that waits for longer work says so itself."""

MAX_TENANT: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Options:
    """Which server, and as whom.

    Attributes:
        server: its URL, without a path's last slash.
        tenant: for whom; 0 leaves that to the token.
        ca_cert: certificates to trust besides the system's.
        insecure: whether any certificate will do.
        token: bearer token; empty for none.
    """

    server: str = settings.SERVER
    tenant: int = 0
    ca_cert: Path | None = None
    insecure: bool = False
    token: str = field(default="", repr=False)


class Client:
    """One command's connection to a server. Blocks; close it when done."""

    def __init__(self, options: Options, transport: httpx.BaseTransport | None = None) -> None:
        """Check the options; nothing is sent yet.

        Raises:
            InvalidArgs: no URL of a server, no token that a header can hold, or no certificates in the file.
        """
        import httpx  # noqa: PLC0415 - keeps --help quick

        url = checked_server(options.server)
        loopback = is_loopback(url.host)
        if options.token and url.scheme == "http" and not loopback:
            warn(f"the token is sent to {clean(url.host)} in the clear: use https")
        if options.insecure:
            warn("--insecure: whoever is between can read and change everything")
        self._http = httpx.Client(
            base_url=options.server,
            headers=_headers(options),
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
        """Send a request and return the JSON of the answer, None if it has no body.

        Args:
            method: of HTTP.
            path: of the route; what varies in it is quoted already.
            body: to send as JSON; None for none.
            options: of httpx: ``content``, ``headers``, ``params``, ``timeout``.

        Raises:
            Refused: the server refuses or fails, or its answer is no JSON.
            EndpointMissing: it has no such route.
            ServerUnreachable: it does not answer.
        """
        answer = self.fetch(method, path, body, **options)
        return parse_json(answer.content) if answer.content else None

    def fetch(self, method: str, path: str, body: object = None, **options: Any) -> httpx.Response:
        """Send a request and return the answer, whatever is in it; the rest as in `call`."""
        with self.open(method, path, body, **options) as answer:
            answer.read()
        return answer

    @contextmanager
    def open(self, method: str, path: str, body: object = None, **options: Any) -> Iterator[httpx.Response]:
        """Send a request and give the answer before its body has come; the rest as in `call`."""
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


def client_command(command: Callable[Concatenate[Client, P], T]) -> Callable[..., T]:
    """Make a command of a function that takes a client first; it gets the options that say which server, as whom."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]
    shared = inspect.signature(_options, eval_str=True).parameters.values()

    @wraps(command)
    def run(**values: Any) -> T:
        options = _options(**{parameter.name: values.pop(parameter.name) for parameter in shared})
        with connect(options) as client:
            return cast("Callable[..., T]", command)(client, **values)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *shared)]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def connect(options: Options) -> Client:
    """Return a client for a server; tests put another in this one's place."""
    return Client(options)


def _options(
    *,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            "--addr",
            metavar="URL",
            help=f"The server. [env: TENSOR_WASM_SERVER; default: {settings.SERVER}]",
        ),
    ] = None,
    tenant: Annotated[int, typer.Option(metavar="NUMBER", help="For which tenant; 0 leaves that to the token.")] = 0,
    ca_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates (PEM) to trust besides the system's.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Take any certificate.")] = False,
) -> Options:
    """Return the options of one run, with the token of the environment."""
    if not 0 <= tenant <= MAX_TENANT:
        raise InvalidArgs("--tenant is a number from 0 to 2**64 - 1")
    url = settings.server() if server is None else server
    return Options(url.rstrip("/"), tenant, ca_cert, insecure, checked_token(settings.bearer()))


def checked_token(token: str) -> str:
    """Return a token that a header can hold.

    Raises:
        InvalidArgs: it has spaces, line breaks or other than ASCII; the message has nothing of it.
    """
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgs("TENSOR_WASM_TOKEN is printable ASCII without spaces")
    return token


def checked_server(text: str) -> httpx.URL:
    """Return the URL of a server.

    Raises:
        InvalidArgs: not http or https, without a host, or with a user, a query or a fragment.
    """
    import httpx  # noqa: PLC0415 - keeps --help quick

    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query or url.fragment:
        raise InvalidArgs("the server is a URL such as https://host:8443, without a user, a query or a fragment")
    return url


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _headers(options: Options) -> dict[str, str]:
    headers = {"User-Agent": f"tensor-wasm/{package_version()}"}
    if options.token:
        headers["Authorization"] = f"Bearer {options.token}"
    if options.tenant:
        headers["X-TensorWasm-Tenant"] = str(options.tenant)
    return headers


def _trust(options: Options) -> Any:
    """Return what certificates are held against: the system's roots and those of the file."""
    import ssl  # noqa: PLC0415 - keeps --help quick

    context = ssl.create_default_context()
    if options.ca_cert is not None:
        try:
            context.load_verify_locations(cafile=options.ca_cert)
        except OSError as error:  # ssl.SSLError is one
            raise InvalidArgs(f"--ca-cert: the file has no certificates: {error.strerror or error}") from None
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _refusal(answer: httpx.Response) -> Exception:
    """Return what an answer that is no success says."""
    if answer.status_code == 404 and answer.headers.get("X-TensorWasm-Route") == "none":
        return EndpointMissing("the server has no such endpoint: it is another release, or something else")
    try:
        error = parse_json(answer.content)["error"]
        kind, message = clean(error["kind"]), clean(error["message"])
    except (Refused, KeyError, TypeError):
        return Refused(
            f"the server answers {answer.status_code}, and not as one of this kind does", status=answer.status_code
        )
    if answer.status_code == 401 and "Authorization" not in answer.request.headers:
        message += " (TENSOR_WASM_TOKEN is not set)"
    return Refused(message, kind or "refused", answer.status_code, error)
