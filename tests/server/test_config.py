from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools.configuration_page import PAGE, describe

from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import Durability
from sluicemq.model.url import Url
from sluicemq.server.config import Config, default_data_dir
from sluicemq.server.configuration_reference import render, to_builtins
from sluicemq.server.listener_settings import Listener
from sluicemq.server.loading import LoadedConfig, load, setting_paths
from sluicemq.server.settings import settings_of


@pytest.fixture(autouse=True)
def change_to_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load_text(tmp_path: Path, text: str, **options: object) -> LoadedConfig:
    file = tmp_path / "test.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, **options)


def test_default_listeners_serve_every_protocol_on_loopback() -> None:
    config = load().config
    assert [str(listener.url) for listener in config.listeners] == [
        "msglite://127.0.0.1:9813",
        "phpmq://127.0.0.1:9100",
        "phpmq-maintenance://127.0.0.1:9101",
        "vibemq://127.0.0.1:2925",
        "jmq://127.0.0.1:7676",
        "http://127.0.0.1:7680",
    ]
    assert {listener.durability for listener in config.listeners} == {None}
    assert config == Config()
    assert not list(config.problems())


def test_redirect_to_dead_letter_without_dead_letter_is_a_warning(tmp_path: Path) -> None:
    overflow = 'overflow = "redirect-to-dead-letter"'
    text = (
        f"[broker.default_destination]\n{overflow}\n"
        f"[destinations.orders]\n{overflow}\ndead_letter = true\n"
        f"[destinations.bills]\n{overflow}\ndead_letter = false\n"
    )
    warnings = list(load_text(tmp_path, text).config.warnings())
    assert [warning.partition(": ")[0] for warning in warnings] == [
        "broker.default_destination",
        "destinations.bills",
    ]
    assert all("dead_letter is false" in warning for warning in warnings)


def test_memory_budget_that_reaches_the_memory_limit_is_a_warning(tmp_path: Path) -> None:
    [warning] = load(flags={"broker.memory_budget": "2GiB"}).config.warnings()
    assert "broker.memory_budget (2GiB) is not below memory_limit (1GiB)" in warning
    flags = {"broker.memory_budget": "2GiB", "broker.memory_limit": "4GiB"}
    assert not list(load(flags=flags).config.warnings())


def test_sources_have_precedence_in_order(tmp_path: Path) -> None:
    idle_timeout = "SLUICEMQ_BROKER__DESTINATION_IDLE_TIMEOUT"
    text = (
        '[broker]\nmax_destinations = 1\ndestination-idle-timeout = "1s"\nmemory_budget = "2MiB"\n'
    )
    environ = {
        "SLUICEMQ_BROKER__MAX_DESTINATIONS": "2",
        idle_timeout: "2s",
        "SLUICEMQ_BROKER__EPHEMERAL": "",
        "SLUICEMQ_BROKER__SCAN_BUDGET": " ",
        "HOME": "/",
    }
    loaded = load_text(
        tmp_path,
        text,
        environ=environ,
        flags={"broker.max_destinations": 3, "broker.data_dir": None},
    )
    broker = loaded.config.broker
    assert broker.max_destinations == 3
    assert broker.destination_idle_timeout == 2000
    assert broker.memory_budget == 2 * 1024**2
    assert broker.data_dir == default_data_dir()
    assert loaded.origins == {
        "broker.max_destinations": "command line",
        "broker.destination_idle_timeout": f"environment variable {idle_timeout}",
        "broker.memory_budget": str(tmp_path / "test.toml"),
    }


def test_listeners_of_later_source_replace_earlier_ones(tmp_path: Path) -> None:
    text = '[[listeners]]\nurl = "phpmq://:1"\n[[listeners]]\nurl = "phpmq://:2"\n'
    environ = {"SLUICEMQ_LISTENERS": "msglite://:3 msglite://:4"}

    def ports(**options: object) -> list[int]:
        return [
            listener.url.port for listener in load_text(tmp_path, text, **options).config.listeners
        ]

    assert ports() == [1, 2]
    assert ports(environ=environ) == [3, 4]
    assert ports(environ=environ, listen=["phpmq://:5"]) == [5]


def test_file_in_working_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "sluicemq.toml").write_text("[logging]\nlevel = 'debug'\n")
    assert load().config.logging.level == "debug"


def test_relative_path_starts_from_the_directory_of_a_linked_file(tmp_path: Path) -> None:
    """Kubernetes mounts files as links into a directory that an update replaces."""
    version = tmp_path / "..2026"
    version.mkdir()
    (version / "sluicemq.toml").write_text("[auth]\nusers_file = 'users.json'\n")
    link = tmp_path / "sluicemq.toml"
    link.symlink_to(version / "sluicemq.toml")
    assert load(link).config.auth.users_file == tmp_path / "users.json"
    assert load().config.auth.users_file == tmp_path / "users.json"


def test_listener_options_in_url_or_as_settings(tmp_path: Path) -> None:
    text = """
    [limits]
    max_connections = 7
    [[listeners]]
    url = "phpmq+tls://[::1]:9?certificate=tls/x.pem&dispatch_version=1"
    [[listeners]]
    url = "phpmq+tls://[::1]:9"
    certificate = "tls/x.pem"
    dispatch_version = 1
    """
    first, *remaining = load_text(tmp_path, text).config.listeners
    assert first == Listener(
        url=Url("phpmq", "::1", 9, tls=True),
        max_connections=7,
        certificate=tmp_path / "tls/x.pem",
        dispatch_version=1,
    )
    assert remaining == [first]


def test_listener_options_override_limits() -> None:
    (listener,) = load(
        flags={"limits.max_connections": 7, "limits.idle_timeout": 3.0},
        listen=["msglite+unix:///s?socket_mode=0600&idle-timeout=2min&durability=lazy"],
    ).config.listeners
    assert listener.max_connections == 7
    assert listener.idle_timeout == 120
    assert listener.socket_mode == 0o600
    assert listener.durability is Durability.LAZY


def test_destinations_inherit_default_destination(tmp_path: Path) -> None:
    text = """
    [broker.default_destination]
    max_attempts = 5
    dead-letter = true
    [destinations.orders]
    max_attempts = 9
    overflow = "block-publisher"
    message_ttl = "1h"
    [destinations."topic:news"]
    """
    config = load_text(tmp_path, text).config
    assert config.broker.default_destination == DestinationSettings(
        max_attempts=5, dead_letter=True
    )
    assert config.destinations == {
        Address(Kind.QUEUE, "orders"): DestinationSettings(
            max_attempts=9, dead_letter=True, overflow=Overflow.BLOCK, message_ttl=3_600_000
        ),
        Address(Kind.TOPIC, "news"): DestinationSettings(max_attempts=5, dead_letter=True),
    }
    assert config.explicit == {
        Address(Kind.QUEUE, "orders"): {"max_attempts", "dead_letter", "overflow", "message_ttl"},
        Address(Kind.TOPIC, "news"): {"max_attempts", "dead_letter"},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[broker]\ndata_dri = 'x'",
            ["test.toml:2: [broker]", "data_dri", "did you mean data_dir?"],
        ),
        ("brokr = 1", ["test.toml", "did you mean broker?"]),
        ("broker = 1", ["broker: this must be a table"]),
        ("[broker]\nephemeral = 'yes'", ["broker.ephemeral", "'yes' does not fit"]),
        ("[broker]\nephemeral = 1", ["broker.ephemeral"]),
        ("[broker]\nmax_destinations = 0", ["broker.max_destinations", ">= 1"]),
        ("[broker]\nmemory_budget = '3 apples'", ["broker.memory_budget", "MiB"]),
        ("[broker]\nshutdown_timeout = -1", ["broker.shutdown_timeout", "negative"]),
        ("[broker]\nshutdown_timeout = nan", ["broker.shutdown_timeout"]),
        ("[broker]\ndestination_idle_timeout = '1.5ms'", ["broker.destination_idle_timeout"]),
        ("[broker]\ndata_dir = 7", ["broker.data_dir", "not a path"]),
        ("[broker.default_destination]\nmax_atempts = 1", ["did you mean max_attempts?"]),
        ("[destinations.q]\nmax_messages = -1", ["destinations.q.max_messages", "negative"]),
        ("[destinations.q]\noverflow = 'block'", ["overflow", "block-publisher"]),
        ("[destinations]\nq = 1", ["destinations.q: this must be a table"]),
        ("[destinations.'topic:']", ["has a name"]),
        ("[logging]\nlevel = 'warn'", ["logging.level", "did you mean warning?"]),
        ("[logging]\nlevel = 3", ["logging.level", "there are debug"]),
        ("listeners = 3", ["[[listeners]]"]),
        ("[[listeners]]", ["listeners[0]", "give a url"]),
        ("[[listeners]]\nurl = 3", ["listeners[0]", "give a url"]),
        ("[[listeners]]\nurl = 'phpmq://'\nhost = 'x'", ["unknown setting host"]),
        ("[[listeners]]\nprotocol = 'phpmq'\nport = 9", ["give a url"]),
        ("[[listeners]]\nurl = 'phpmq://a$b'", ["neither a host name"]),
        ("[[listeners]]\nurl = 'phpmq://?dispatch_version=3'", ["dispatch_version", "auto, 1, 2"]),
        ("[[listeners]]\nurl = 'msglite://?dispatch_version=1'", ["not an option of msglite"]),
        (
            "[[listeners]]\nurl = 'phpmq://?dispatch_version=1'\ndispatch_version = 1",
            ["both in the URL"],
        ),
        ("[[listeners]]\nurl = 'phpmq://?socket_mode=0600'", ["requires a Unix socket"]),
        (
            "[[listeners]]\nurl = 'phpmq+unix:///s'\nsocket_mode = 440",
            ["socket_mode", "octal digits"],
        ),
        ("[[listeners]]\nurl = 'phpmq+unix:///s'\nsocket_mode = '7777'", ["socket_mode", "511"]),
        ("[[listeners]]\nurl = 'phpmq://?certifcate=/x'", ["did you mean certificate?"]),
        ("[[listeners]]\nurl = 'phpmq://?durability=fast'", ["none, lazy, sync"]),
        ("[[listeners]]\nurl = 'phpmq+unix://s'", ["three slashes"]),
        (
            "[broker]\nscan_budget = 1\nscan-budget = 2",
            ["test.toml:3: broker.scan_budget is given twice"],
        ),
        ("a = ", ["test.toml:1: not TOML"]),
        ("x = " + "[" * 20_000, ["not TOML"]),
    ],
)
def test_errors_in_file_are_explained(tmp_path: Path, text: str, expected: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_text(tmp_path, text)
    assert "test.toml" in str(caught.value)
    for part in expected:
        assert part in str(caught.value)


def test_variables_of_kubernetes_services_are_ignored() -> None:
    environ = {
        "SLUICEMQ_SERVICE_HOST": "10.96.0.12",
        "SLUICEMQ_SERVICE_PORT": "9100",
        "SLUICEMQ_SERVICE_PORT_PHPMQ_TLS": "9100",
        "SLUICEMQ_PORT": "tcp://10.96.0.12:9100",
        "SLUICEMQ_PORT_9100_TCP": "tcp://10.96.0.12:9100",
        "SLUICEMQ_PORT_9100_TCP_PROTO": "tcp",
        "SLUICEMQ_PORT_9100_TCP_PORT": "9100",
        "SLUICEMQ_PORT_9100_TCP_ADDR": "10.96.0.12",
        "SLUICEMQ_HTTP_API_SERVICE_HOST": "10.96.0.13",
        "SLUICEMQ_HTTP_API_PORT_7680_TCP": "tcp://10.96.0.13:7680",
    }
    assert load(environ=environ).config == load().config


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLUICEMQ_BROKER__DATADIR": "x"}, "did you mean SLUICEMQ_BROKER__DATA_DIR?"),
        ({"SLUICEMQ_BROKER__MAX_DESTINATIONS": "many"}, "SLUICEMQ_BROKER__MAX_DESTINATIONS"),
        ({"SLUICEMQ_LISTENERS": "phpmq://h:x"}, "SLUICEMQ_LISTENERS"),
        ({"SLUICEMQ_HTTP__PORT": "7680"}, "unknown setting SLUICEMQ_HTTP__PORT"),
    ],
)
def test_errors_in_environment_are_explained(environ: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(environ=environ)
    assert expected in str(caught.value)


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: the file cannot be read: No such"):
        load(tmp_path / "none.toml")
    (tmp_path / "latin").write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigurationError, match="byte 2 is not UTF-8"):
        load(tmp_path / "latin")
    (tmp_path / "big").write_bytes(b"#" * (1024**2 + 1))
    with pytest.raises(ConfigurationError, match="larger than"):
        load(tmp_path / "big")


def problems(*listen: str, **flags: object) -> list[str]:
    return list(load(listen=listen, flags=flags).config.problems())


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.1.2.3", "broker.example"])
def test_public_listeners_require_insecure_public(host: str) -> None:
    (problem,) = problems(f"phpmq://{host}:9100")
    assert "insecure_public" in problem
    assert "no logins" in problem
    assert problems(f"phpmq://{host}:9100", insecure_public=True) == []


def test_tls_requires_readable_files(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.touch()
    assert "needs a certificate" in problems("phpmq+tls://")[0]
    assert "there is no file /none.pem" in problems("phpmq+tls://?certificate=/none.pem")[0]
    with pytest.raises(ConfigurationError, match=r"write phpmq\+tls://127\.0\.0\.1:9100"):
        problems(f"phpmq://?certificate={pem}")
    assert f"{pem} has no certificate" in problems(f"phpmq+tls://?certificate={pem}")[0]


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        (["phpmq://:1", "msglite://:1"], "same address"),
        (["phpmq+unix:///a", "msglite+unix:///a"], "same address"),
        (["phpmq://h@:1"], "neither a user nor a queue"),
        (["phpmq://:1/queue"], "neither a user nor a queue"),
    ],
)
def test_invalid_listeners_are_reported(listen: list[str], expected: str) -> None:
    assert any(expected in problem for problem in problems(*listen))


def test_invalid_directories_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "not a directory" in problems(**{"broker.data_dir": str(tmp_path / "file")})[0]
    assert "too long" in problems(**{"broker.data_dir": "/" + "x" * 100})[0]
    (clash,) = problems(f"phpmq+unix://{tmp_path}/admin.sock", **{"broker.data_dir": str(tmp_path)})
    assert "admin socket" in clash


def test_data_directory_without_access_is_reported_with_the_remedy(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0)
    config = load(flags={"broker.data_dir": str(directory / "new")}).config
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        found = list(config.problems())
    finally:
        os.seteuid(user)
    (problem,) = [problem for problem in found if problem.startswith("broker.data_dir: ")]
    assert "this user may not read and write /" in problem
    assert "run the broker as the owner of that directory" in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes", "1kB"),
        ("segment_bytes", "64GiB"),
        ("compaction_threshold", 2),
        ("slot_limit_bytes", 0),
    ],
)
def test_invalid_journal_settings_are_rejected(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"journal.{name}: .* does not fit: Expected"):
        load(flags={f"journal.{name}": value})


def test_contradictory_destination_settings_are_reported(tmp_path: Path) -> None:
    text = "[destinations.q]\nretry_delay = '1h'\nactive_consumers = 3\nmax_consumers = 2\n"
    problems = list(load_text(tmp_path, text).config.problems())
    assert [problem.split(":")[0] for problem in problems] == ["destinations.q"] * 2


def test_names_of_temporary_destinations_are_reported(tmp_path: Path) -> None:
    name = "temporary_destination://queue/1/1"
    text = f"[destinations.'{name}']\n[destinations.q]\ndead_letter_queue = '{name}'\n"
    reason = f"{name} is reserved for temporary destinations, which clients create"
    assert list(load_text(tmp_path, text).config.problems()) == [
        f"destinations.{name}: {reason}",
        f"destinations.q.dead_letter_queue: {reason}",
    ]


def test_check_reports_every_problem_at_once() -> None:
    loaded = load(listen=["phpmq://0.0.0.0:1", "phpmq+tls://:2"])
    with pytest.raises(ConfigurationError) as caught:
        loaded.check()
    assert len(str(caught.value).splitlines()) == 2
    [problem] = msgspec.structs.replace(loaded.config, listeners=()).problems()
    assert "no listener" in problem


def test_every_setting_is_explained() -> None:
    undocumented = [".".join(path) for path, setting in setting_paths() if not setting.meaning]
    undocumented += [s.name for s in settings_of(Listener).values() if not s.meaning]
    assert undocumented == ["url"]


def test_reference_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == describe(), "run: python -m tools.configuration_page"


def test_rendered_configuration_loads_equal(tmp_path: Path) -> None:
    text = """
    insecure_public = true
    [broker]
    memory_budget = 3000001
    shutdown_timeout = 0.25
    [broker.default_destination]
    idle_timeout = 5
    [limits]
    output_timeout = "1h"
    [[listeners]]
    url = "phpmq+tls://0.0.0.0:9100?certificate=/x.pem&max_connections=5"
    [[listeners]]
    url = "msglite+unix:///s%20p?socket_mode=0000&durability=lazy"
    [[listeners]]
    url = "vibemq://127.0.0.1:2925?max_frame_bytes=64MiB"
    [destinations."a \\"b\\" \\u007f é"]
    max_bytes = "1GiB"
    overflow = "drop-oldest"
    priority_ordering = true
    """
    loaded = load_text(tmp_path, text)
    [explicit] = loaded.config.explicit.values()
    assert explicit == {"idle_timeout", "max_bytes", "overflow", "priority_ordering"}
    assert load_text(tmp_path, render(loaded.config)).config == loaded.config
    assert load_text(tmp_path, render(loaded.config, loaded.origins)).config == loaded.config
    assert (
        msgspec.json.decode(msgspec.json.encode(to_builtins(loaded.config)))["listeners"][0]["url"]
        == "phpmq+tls://0.0.0.0:9100"
    )


_keys = st.sampled_from(
    [
        "data_dir",
        "url",
        "host",
        "port",
        "path",
        "tls",
        "socket_mode",
        "idle_timeout",
        "key",
        "q",
        "level",
    ]
)
_toml_values = st.one_of(
    st.sampled_from(["1", "-1", "9" * 20, "1.5", "nan", "true", "2020-01-01"]),
    st.sampled_from(["''", "'x'", "'~none/'", "'phpmq://'", "'1s'", '"\\u0000"']),
    st.sampled_from(["[]", "{}", "[{}]", "[1]", "['x']", "{q = 1}"]),
)
_tables = st.sampled_from(
    ["[broker]", "[broker.q]", "[limits]", "[logging]", "[[listeners]]", "[destinations.q]", "[q]"]
)
_toml = st.lists(
    st.tuples(_tables, st.dictionaries(_keys, _toml_values, max_size=3)),
    max_size=3,
    unique_by=lambda item: item[0],
).map(
    lambda tables: "".join(
        f"{head}\n" + "".join(f"{key} = {value}\n" for key, value in body.items())
        for head, body in tables
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_toml)
def test_any_file_loads_or_raises_configuration_error(tmp_path: Path, text: str) -> None:
    try:
        load_text(tmp_path, text).check()
    except ConfigurationError:
        return


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40))
def test_any_options_load_or_raise_configuration_error(text: str) -> None:
    try:
        load(listen=[f"phpmq://h:1?{text}"])
    except ConfigurationError:
        return


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([path for path, _ in setting_paths()]), st.text(min_size=1, max_size=20))
def test_invalid_value_is_reported_with_its_setting(path: tuple[str, ...], value: str) -> None:
    dotted = ".".join(path)
    try:
        origins = load(Path("/dev/null"), flags={dotted: value}).origins
    except ConfigurationError as error:
        message = str(error)
    else:
        message = ": ".join(next(iter(origins.items()))[::-1])
    assert message.startswith(f"command line: {dotted}")


def test_explicit_default_value_of_default_destination_is_recorded(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "[broker.default_destination]\nmax_messages = 0\n")
    assert loaded.config.default_fields == {"max_messages"}
    text = render(loaded.config)
    section = text.split("[broker.default_destination]\n")[1].split("\n\n")[0]
    assert section == "max_messages = 0"
