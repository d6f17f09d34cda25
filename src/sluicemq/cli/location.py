"""Options of the commands: those of `serve`, which the configuration results from, and those that
locate the broker of a command, with the credentials for it:

    --url, else --data-dir or --config, else $SLUICEMQ_URL, else the configured data directory

A URL (http://, https://, http+unix://) requires a password or a token, as any listener does.
Without a URL the command opens the socket `admin.sock` in the broker's data directory. Anyone who
can open the socket already has access to the data, so no login is required.
"""

from __future__ import annotations

import getpass
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

import typer

from sluicemq.cli.console import UsageError, advising, err
from sluicemq.clients.http import HttpTarget, parse_url, target
from sluicemq.model.errors import AccessError, ConfigurationError
from sluicemq.model.url import is_public
from sluicemq.security.files import read_secret_file
from sluicemq.server.loading import CONFIG_VARIABLE, LoadedConfig, load

CLIENT_VARIABLES: Final = frozenset(
    f"SLUICEMQ_{name}"
    for name in ("URL", "USER", "PASSWORD", "PASSWORD_FILE", "TOKEN", "TOKEN_FILE", "CA")
)
"""Environment variables by which commands reach a broker; they are no broker settings."""

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help=f"Configuration file (default: ${CONFIG_VARIABLE}, ./sluicemq.toml, "
        "/etc/sluicemq/sluicemq.toml).",
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        "-d",
        readable=False,  # an unreadable one is reported with the remedy
        help="Directory of the journal and the admin socket.",
    ),
]
ListenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        "-l",
        metavar="URL",
        help="Address to listen on, as phpmq://127.0.0.1:9100; repeat for several.",
    ),
]
EphemeralOption = Annotated[
    bool | None, typer.Option("--ephemeral", help="Keep everything in memory only.")
]
LogLevelOption = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error.")
]
InsecureOption = Annotated[
    bool | None,
    typer.Option("--insecure-public", help="Permit addresses that other machines can reach."),
]


def load_flags(
    config: Path | None,
    data_dir: Path | None,
    listen: list[str] | None = None,
    ephemeral: bool | None = None,
    log_level: str | None = None,
    insecure_public: bool | None = None,
) -> LoadedConfig:
    """Load the configuration from these options, the environment and the file. Raises
    ConfigurationError."""
    with configuration_advice():
        return load(
            *configuration_sources(config, data_dir, listen, ephemeral, log_level, insecure_public)
        )


def configuration_advice() -> AbstractContextManager[None]:
    """Add to errors of the configuration where its settings are explained."""
    text = (
        "docs/configuration.md explains every setting, and so does: sluicemq config show --explain"
    )
    return advising(lambda error: text if isinstance(error, ConfigurationError) else "")


def configuration_sources(
    config: Path | None,
    data_dir: Path | None,
    listen: list[str] | None,
    ephemeral: bool | None,
    log_level: str | None,
    insecure_public: bool | None,
) -> tuple[Path | None, dict[str, str], dict[str, Any], list[str]]:
    """Return the arguments of `loading.load` and `loading.examine` for these options."""
    flags = {
        "broker.data_dir": None if data_dir is None else str(data_dir),
        "broker.ephemeral": ephemeral,
        "logging.level": log_level,
        "insecure_public": insecure_public,
    }
    settings = {k: v for k, v in os.environ.items() if k not in CLIENT_VARIABLES}
    if config is None and (file := os.environ.get(CONFIG_VARIABLE)):
        config = Path(file)
    return config, settings, flags, listen or []


# --- Location of the broker -----------------------------------------------------------------------

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
        readable=False,
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
        help="Configuration file of a local broker.",
        rich_help_panel=PANEL,
    ),
]


class BrokerLocation(NamedTuple):
    """Values of the location options; those not given are None. If `interactive` is false, nothing
    is printed: no prompt for a password and no warning."""

    url: str | None = None
    user: str | None = None
    password_file: Path | None = None
    token_file: Path | None = None
    ca: Path | None = None
    config: Path | None = None
    data_dir: Path | None = None
    interactive: bool = True

    def target(self) -> HttpTarget:
        """Return the broker's address and credentials; prompts for a missing password. Raises
        UsageError."""
        options = self.http_options()
        if not options:
            return HttpTarget(path=str(self.socket()))
        http_target = target(options)
        unencrypted = http_target.authorization and not http_target.tls and not http_target.path
        if unencrypted and self.interactive and is_public(http_target.host):
            err().print(
                f"warning: the password is sent to {http_target.host} unencrypted; use https://",
                style="yellow",
                markup=False,
            )
        return http_target

    def http_options(self) -> dict[str, str]:
        """Return the broker's URL and credentials as options of `clients.http.target` and of the
        Spark source and sink; {} for a local data directory.

        Prompts for a missing password. Raises UsageError."""
        url, source = self.url, "--url"
        if url is not None and self.data_dir is not None:
            raise UsageError("give either --url or a data directory, not both")
        if url is None and not self.local:
            url, source = os.environ["SLUICEMQ_URL"], "SLUICEMQ_URL"
        if url is None:
            for option in ("user", "password_file", "token_file", "ca"):
                if getattr(self, option) is not None:
                    raise UsageError(
                        f"--{option.replace('_', '-')} requires --url; a local data directory "
                        "requires no login"
                    )
            return {}
        try:
            fields = parse_url(url)
            address = str(target({"url": url}))
        except ConfigurationError as error:
            raise UsageError(f"{source}: {error}") from None
        if self.ca is not None and not fields["tls"]:
            raise UsageError("--ca requires https://")
        variable = None if "ca" in fields else os.environ.get("SLUICEMQ_CA")
        if fields["tls"] and (ca := self.ca or variable):
            path = quote(str(Path(ca).absolute()))
            url = f"{url}{'&' if '?' in url else '?'}ca={path}"
        user = fields.get("username", "")
        if self.user is not None and user:
            raise UsageError("the URL contains the user; leave out --user")
        if fields.get("password"):
            if self.password_file is not None or self.token_file is not None:
                raise UsageError(
                    "the URL contains the password; leave out --password-file and --token-file"
                )
            return {"url": url}
        credentials = find_credentials(
            user or self.user,
            self.password_file,
            self.token_file,
            address,
            interactive=self.interactive,
        )
        return {"url": url, **{k: v for k, v in credentials._asdict().items() if v}}

    @property
    def local(self) -> bool:
        """True if the broker is that of a local data directory; it may be stopped."""
        is_named = self.data_dir is not None or self.config is not None
        return self.url is None and (is_named or not os.environ.get("SLUICEMQ_URL"))

    def socket(self) -> Path:
        """Return the path of the admin socket in the broker's data directory."""
        return load_flags(self.config, self.data_dir).config.admin_socket


class Credentials(NamedTuple):
    """User and password, or a token; all are "" for an anonymous client."""

    user: str = ""
    password: str = ""
    token: str = ""


def find_credentials(
    user: str | None,
    password_file: Path | None,
    token_file: Path | None,
    server: str,
    *,
    interactive: bool = True,
) -> Credentials:
    """Return the credentials of the options, else of the environment; if `interactive`, prompt for
    a missing password on a terminal. Raises UsageError."""
    if user is not None and token_file is not None:
        raise UsageError("a token identifies its user; leave out --user")
    if token_file is not None:
        return Credentials(token=read_secret_file(token_file))
    if user is None:
        if token := _secret_variable("SLUICEMQ_TOKEN", "SLUICEMQ_TOKEN_FILE"):
            return Credentials(token=token)
        user = os.environ.get("SLUICEMQ_USER") or None
    if user is None:
        if password_file is not None:
            raise UsageError("--password-file requires --user")
        return Credentials()
    if password_file is not None:
        password = read_secret_file(password_file)
    elif variable := _secret_variable("SLUICEMQ_PASSWORD", "SLUICEMQ_PASSWORD_FILE"):
        password = variable
    elif interactive and sys.stdin.isatty():
        password = ask_password(f"Password of {user} at {server}: ")
    else:
        raise UsageError(
            f"there is no terminal to ask for the password of {user}; give --password-file, or set "
            "SLUICEMQ_PASSWORD"
        )
    return Credentials(user, password)


def ask_password(prompt: str) -> str:
    """Return a password that is typed without echo. Raises AccessError."""
    try:
        return getpass.getpass(prompt, sys.stderr)
    except UnicodeDecodeError:
        raise AccessError("the typed password is not UTF-8 text") from None


def _secret_variable(name: str, file_name: str) -> str:
    """Return the secret in an environment variable, or in the file that another one names."""
    file = os.environ.get(file_name)
    return os.environ.get(name) or (read_secret_file(Path(file)) if file else "")


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


def location_of(arguments: dict[str, Any]) -> BrokerLocation:
    """Remove the values of `location_options` from a command's arguments and return them."""
    values = {name: arguments.pop(name) for name in location_options()}
    return BrokerLocation(user=values.pop("user_name"), **values)
