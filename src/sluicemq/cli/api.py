"""Access of the commands to the broker's management API over TCP, TLS or a Unix socket.

with Api(place.target()) as api:
    for queue in api.items(LIST_DESTINATIONS, DestinationQuery(kind="queue")):
        ...
"""

from __future__ import annotations

import getpass
import http.client
import ipaddress
import os
import ssl
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self, TypeVar

import msgspec
import typer
from msgspec.structs import replace

from sluicemq.cli.console import UsageError, err
from sluicemq.cli.serve import load_flags
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.http import (
    TIMEOUT,
    HttpConnection,
    HttpRefusal,
    HttpResponse,
    HttpTarget,
    authorization,
    request_of,
    stranger,
    target,
)
from sluicemq.clients.management import ManagementClient, lost, refused
from sluicemq.management.operation import AnswerT, ApiOperation, Page, PageQuery, ParametersT
from sluicemq.model.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationMissing,
    ConfigurationError,
    ConnectionLost,
    SluiceError,
)
from sluicemq.server.loading import CONFIG_VARIABLE

# --- Location of the broker -----------------------------------------------------------------------
#
# Location of the broker that a command uses, and the credentials for it.
#
#     --url, else --data-dir or --config, else $SLUICEMQ_URL, else the configured data directory
#
# A URL (http://, https://, http+unix://) requires a password or a token, as any listener does.
# Without a URL the command opens the socket `admin.sock` in the broker's data directory. Anyone who
# can open the socket already has access to the data, so no login is required.

PANEL: Final = "Broker and login"

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="HTTP listener of the broker: http://host:7680 or https://… (or $SLUICEMQ_URL)",
        rich_help_panel=PANEL,
    ),
]
UserOption = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME",
        help="User name; prompts for the password. (or $SLUICEMQ_USER)",
        rich_help_panel=PANEL,
    ),
]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="The password for --user is its first line. (or $SLUICEMQ_PASSWORD)",
        rich_help_panel=PANEL,
    ),
]
LoginPasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--login-password-file",
        metavar="FILE",
        help="The password for --user is its first line. (or $SLUICEMQ_PASSWORD)",
        rich_help_panel=PANEL,
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Log in with the token in its first line. (or $SLUICEMQ_TOKEN)",
        rich_help_panel=PANEL,
    ),
]
AuthorityOption = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="Certificate authorities to trust for https. (or $SLUICEMQ_CA)",
        rich_help_panel=PANEL,
    ),
]
_DATA_DIR = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        "-d",
        metavar="DIR",
        help="Data directory of a local broker; not with --url.",
        rich_help_panel=PANEL,
    ),
]
_CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        help="Configuration file of a local broker.",
        rich_help_panel=PANEL,
    ),
]


class BrokerLocation(NamedTuple):
    """Values of the location options; those not given are None."""

    url: str | None = None
    user: str | None = None
    password_file: Path | None = None
    token_file: Path | None = None
    ca: Path | None = None
    config: Path | None = None
    data_dir: Path | None = None

    def target(self) -> HttpTarget:
        """Return the broker's address and credentials; prompts for a missing password. Raises
        UsageError."""
        url = self.url
        if url is not None and self.data_dir is not None:
            raise UsageError("give either --url or --data-dir, not both")
        if url is None and self.data_dir is None and self.config is None:
            url = os.environ.get("SLUICEMQ_URL") or None
        if url is not None:
            return self._by_url(url)
        for option in ("user", "password_file", "token_file", "ca"):
            if getattr(self, option) is not None:
                raise UsageError(
                    f"--{option.replace('_', '-')} goes with --url; the socket in the data "
                    "directory requires no login"
                )
        return HttpTarget("localhost", 0, path=str(self.socket()))

    @property
    def local(self) -> bool:
        """True if the broker is that of a local data directory; it may be stopped."""
        named = self.data_dir is not None or self.config is not None
        return self.url is None and (named or not os.environ.get("SLUICEMQ_URL"))

    def socket(self) -> Path:
        """Return the path of the admin socket in the broker's data directory."""
        return load_flags(self.config, self.data_dir).config.admin_socket

    def _by_url(self, url: str) -> HttpTarget:
        try:
            found = target({"url": url})
        except ConfigurationError as error:
            raise UsageError(f"--url: {error}") from None
        if ca := self.ca or os.environ.get("SLUICEMQ_CA"):
            if not found.secure:
                raise UsageError("--ca has a meaning only with https://")
            found = found._replace(ca=str(ca))
        if not found.authorization:
            found = found._replace(authorization=self._authorization(str(found)))
        elif self.user is not None or self.token_file is not None:
            raise UsageError("the URL contains the user; leave out --user and --token-file")
        if found.authorization and not found.secure and not found.path and _is_far(found.host):
            err().print(
                f"warning: the password is sent to {found.host} unencrypted; use https://",
                style="yellow",
                markup=False,
            )
        return found

    def _authorization(self, where: str) -> str:
        environ = os.environ
        user, token_file = self.user, self.token_file
        if user is not None and token_file is not None:
            raise UsageError("a token identifies its user; leave out --user")
        if user is None and token_file is None:
            user = environ.get("SLUICEMQ_USER") or None
            if token := environ.get("SLUICEMQ_TOKEN"):
                return authorization("", "", token)
            if named := environ.get("SLUICEMQ_TOKEN_FILE"):
                token_file = Path(named)
        if token_file is not None:
            return authorization("", "", _secret(token_file))
        if user is None:
            if self.password_file is not None:
                raise UsageError("--password-file goes with --user")
            return ""
        return authorization(user, self._password(user, where), "")

    def _password(self, user: str, where: str) -> str:
        if self.password_file is not None:
            return _secret(self.password_file)
        if password := os.environ.get("SLUICEMQ_PASSWORD"):
            return password
        if named := os.environ.get("SLUICEMQ_PASSWORD_FILE"):
            return _secret(Path(named))
        if sys.stdin.isatty():
            return getpass.getpass(f"Password of {user} at {where}: ", sys.stderr)
        raise UsageError(
            f"there is no terminal to ask for the password of {user}; give --password-file, or set "
            "SLUICEMQ_PASSWORD"
        )


def _secret(path: Path) -> str:
    # imported here because the password hashes that come along are slow to load
    from sluicemq.security.passwords import read_secret_file

    return read_secret_file(path)


def _is_far(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def location_options(login: Any = PasswordFileOption) -> dict[str, Any]:
    """Return the location options by parameter; `login` declares the password option."""
    return {
        "url": UrlOption,
        "user_name": UserOption,
        "password_file": login,
        "token_file": TokenFileOption,
        "ca": AuthorityOption,
        "data_dir": _DATA_DIR,
        "config": _CONFIG,
    }


def location_of(given: dict[str, Any]) -> BrokerLocation:
    """Remove the values of `location_options` from a command's arguments and return them."""
    found = {name: given.pop(name) for name in location_options()}
    return BrokerLocation(user=found.pop("user_name"), **found)


PAGE_SIZE: Final = 500
"""Number of items requested per page."""

QueryT = TypeVar("QueryT", bound=PageQuery)
PageT = TypeVar("PageT", bound=Page[Any])
ItemT = TypeVar("ItemT")


class OperationCaller(ABC):
    """Caller of operations: the API of a running broker, or the files of a stopped one."""

    @abstractmethod
    def call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        """Carry out an operation and return its response."""

    def pages(
        self, operation: ApiOperation[QueryT, PageT], query: QueryT, most: int = 0
    ) -> Iterator[PageT]:
        """Yield the pages of a list, with at most `most` items; 0 = all."""
        seen, cursor = 0, ""
        while True:
            limit = min(most - seen, PAGE_SIZE) if most else PAGE_SIZE
            page = self.call(operation, replace(query, limit=limit, cursor=cursor))
            yield page
            seen += len(page.items)
            if page.next_cursor is None or seen == most:
                return
            cursor = page.next_cursor

    def items(
        self, operation: ApiOperation[QueryT, Page[ItemT]], query: QueryT, most: int = 0
    ) -> Iterator[ItemT]:
        """Yield the items of a list from all of its pages; at most `most`, 0 = all."""
        for page in self.pages(operation, query, most):
            yield from page.items


class Api(OperationCaller):
    """One connection to the API, used by one thread. Closed by `close` or `with`.

    All requests raise the errors of `ManagementClient.call`. The notes of an error state how to
    resolve it.
    """

    def __init__(self, target: HttpTarget, patience: float = TIMEOUT) -> None:
        """Set up the client. `patience` is the maximum wait for the next bytes of a response,
        seconds."""
        self._target = target
        self._patience = patience
        self._client = BlockingClient(ManagementClient.open, target, patience)

    def call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        """Carry out an operation and return its response."""
        with self._advice():
            answer: AnswerT = self._client.call(operation, parameters)
            return answer

    def lines(
        self, operation: ApiOperation[ParametersT, bytes], parameters: ParametersT
    ) -> Iterator[dict[str, Any]]:
        """Carry out an operation with a streamed response; yield the JSON document of each line as
        it arrives."""
        connection = HttpConnection(self._target, self._patience)
        with self._advice():
            try:
                connection.send(*request_of(operation, parameters))
                status, lines = connection.receive_lines()
                if status >= 400:
                    raise refused(self._target, HttpResponse(status, {}, b"".join(lines)))
                for line in lines:
                    yield msgspec.json.decode(line)
            except (OSError, http.client.HTTPException) as fault:
                raise lost(self._target, fault) from fault
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise stranger(self._target) from None
            finally:
                connection.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _advice(self) -> Iterator[None]:
        """Add advice to errors; a text in a request that is not UTF-8 becomes a UsageError."""
        try:
            yield
        except UnicodeEncodeError as error:
            raise UsageError(f"{error.object!a} is not UTF-8 text") from None
        except SluiceError as error:
            if advice := _advice_for(error, self._target):
                error.add_note(advice)
            raise


def _advice_for(error: SluiceError, target: HttpTarget) -> str:
    """Return what to do about an error of a request; "" if unknown."""
    if isinstance(error, HttpRefusal):
        return _ADVICE.get(error.code, "")
    if isinstance(error, AuthenticationMissing | AuthenticationFailed):
        return "Log in with --user NAME (and --password-file FILE), or with --token-file FILE."
    if isinstance(error, AccessDenied):
        return _PERMIT if " may not " in str(error) else ""
    fault = error.__cause__
    if not isinstance(error, ConnectionLost) or fault is None or isinstance(fault, TimeoutError):
        return ""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return "Name the file of the authority that made it with --ca FILE."
    if isinstance(fault, PermissionError):
        return (
            "Only the owner of the broker's data may open this socket: run the command as that "
            "user, or log in with --url http://… and --user."
        )
    if target.path:
        return (
            "Is it running? sluicemq serve starts one; --data-dir DIR or --url "
            "http://HOST:7680 selects another one."
        )
    return "Is it running with an http:// listener?"


_PERMIT: Final = "A superuser can permit it: sluicemq permissions grant USER PATTERN OPERATION..."
_ADVICE: Final = {
    "destination-exists": "alter changes its settings.",
    "destination-in-use": "--force removes it all the same.",
    "subscription-in-use": "--force removes it all the same.",
    "destination-not-found": "sluicemq queues and sluicemq topics list the existing ones.",
    "message-not-found": "sluicemq messages list NAME lists the existing ones.",
    "subscription-not-found": "sluicemq subscriptions lists the existing ones.",
    "connection-not-found": "sluicemq connections lists the existing ones.",
    "transaction-not-found": "sluicemq transactions lists the existing ones.",
    "user-not-found": "sluicemq users lists the existing ones.",
    "role-not-found": "sluicemq permissions role lists the existing ones.",
    "not-found": "Is the broker older than this program? sluicemq status shows its version.",
    "stopping": "The broker is stopping; ask again when it runs.",
}
