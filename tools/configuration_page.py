"""Write the reference of all settings, `docs/configuration.md`.

python -m tools.configuration_page
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sluicemq.model.destination import DestinationSettings
from sluicemq.server.config import Config
from sluicemq.server.configuration_reference import value_text
from sluicemq.server.listener_settings import DEFAULT_LISTENERS, Listener, ListenerLimits
from sluicemq.server.loading import CONFIG_VARIABLE, DEFAULT_FILES, SECTIONS, environment_name
from sluicemq.server.settings import Setting, Unit, choices, settings_of

PAGE: Final = Path(__file__).parents[1] / "docs" / "configuration.md"

_INTRODUCTION: Final = f"""\
# Configuration

<!-- Written by tools/configuration_page.py; a test compares this page with the program. -->

This page is the reference of all settings of the broker, by section of the configuration file.
`sluicemq serve` needs no configuration. Settings come from four sources; later ones override
earlier ones:

1. the defaults below;
2. a TOML file: the one named by `--config` or `{CONFIG_VARIABLE}`, else the first that exists of
   {" and ".join(f"`{file}`" for file in DEFAULT_FILES)};
3. environment variables: `SLUICEMQ_`, the section, two underscores, the setting, all in capitals
   (`{environment_name(("broker", "data_dir"))}`). `{environment_name(("listeners",))}` holds URLs,
   separated by spaces. An empty variable counts as unset. Those that Kubernetes sets for a service
   whose name begins with `sluicemq`, such as `SLUICEMQ_SERVICE_HOST`, are ignored;
4. the command line.

A configuration file for production sets few of them:

```toml
[broker]
data_dir = "/var/lib/sluicemq"

[limits]
max_connections_per_user = 500

[[listeners]]
url = "phpmq://127.0.0.1:9100"

[[listeners]]
url = "http://127.0.0.1:7680"

[destinations.orders]
max_messages = 100000
dead_letter = true
max_attempts = 5
```

- `sluicemq config check` reports all errors with file and line; an unknown setting is an error.
  It also checks the data directory, the user database and the certificates, and, unless a broker
  runs with that data directory, whether the addresses are free.
- `sluicemq config show` prints the effective settings, with `--explain` also the source of each
  value.
- Names are written with `-` or `_`.
- Sizes may end in B, kB, MB, GB, KiB, MiB, GiB and durations in ms, s, min, h, d; a number without
  a unit is in the unit given below.
- Relative paths in a file start from the directory of that file.
- Changes take effect when the broker is restarted.
"""

_LISTENERS: Final = f"""\
## [[listeners]]

Addresses that clients connect to. Default:
{", ".join(f"`{url}`" for url in DEFAULT_LISTENERS)}, each on its
traditional loopback port. A listener has a URL:

```toml
[[listeners]]
url = "phpmq://127.0.0.1:9100"
max_connections = 500

[[listeners]]
url = "msglite+unix:///run/sluicemq/msglite.socket"
socket_mode = "0660"
```

An `auto` listener (`auto://127.0.0.1:9000`) serves msglite, PHPMQ, VibeMQ, JMQ and HTTP on one
port and detects the protocol of a connection from its first bytes. HTTP there is the management API
and the console, not the msglite gateway, and its logins are those of an `http` listener at the same
address. The reply to other text is msglite's error line; binary data of another protocol closes the
connection.

A listener on `[::]` accepts IPv6 connections only; another one on `0.0.0.0` with the same port
accepts those of IPv4.

All other settings may also be options of the URL, as in `--listen`:
`phpmq+tls://127.0.0.1:9100?certificate=/etc/ssl/broker.pem&max_connections=500`. A
listener may have all settings of `[limits]`, and these:
"""

_DESTINATIONS: Final = """\
## [destinations.NAME]

Queues that are created at start, and topics (`[destinations."topic:NAME"]`). The other settings of
a destination are those of `[broker.default_destination]`, which also apply to destinations that are
created automatically. For queues of VibeMQ clients, only the settings that are written there apply
([order of precedence](protocols/vibemq.md)). A full dead-letter queue accepts no messages,
regardless of its `overflow`: dead letters are never dropped, except those of JMS in `mq.sys.dmq`.
If a number is a limit or a time, 0 means "no limit" or "never".

```toml
[destinations.orders]
max_messages = 100000
overflow = "block-publisher"
```
"""


def describe() -> str:
    """Return the reference of all settings as Markdown, identical on all machines."""
    parts = [
        _INTRODUCTION,
        "## Top level\n",
        _table([settings_of(Config)["insecure_public"]]),
    ]
    for path, struct in SECTIONS.items():
        if struct is DestinationSettings:
            continue
        parts.append(f"## [{'.'.join(path)}]\n")
        fields = settings_of(struct)
        parts.append(_table(s for s in fields.values() if (*path, s.name) not in SECTIONS))
    limits = settings_of(ListenerLimits)
    fields = {n: s for n, s in settings_of(Listener).items() if n != "url" and n not in limits}
    parts += [_LISTENERS, _table(fields.values())]
    parts += [_DESTINATIONS, _table(settings_of(DestinationSettings).values())]
    return "\n".join(parts)


def _table(settings: Iterable[Setting]) -> str:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for setting in settings:
        meaning = setting.meaning
        words = choices(setting)
        if words:
            stop = "" if meaning.endswith(".") else "."
            meaning = f"{meaning}{stop} One of {', '.join(f'`{word}`' for word in words)}."
        elif setting.unit is not None and setting.unit is not Unit.MODE:
            meaning = f"{meaning} (in {setting.unit})"
        cell = meaning.replace("|", "\\|").replace("<", "&lt;")
        rows.append(f"| `{setting.name}` | {_default(setting)} | {cell} |")
    return "\n".join(rows) + "\n"


def _default(setting: Setting) -> str:
    if setting.name in ("data_dir", "durability"):  # the description states the default
        return "see meaning"
    if setting.default is None or setting.default == "":
        return ""
    text = value_text(setting.default, setting.unit)
    return f"`{json.loads(text) if text.startswith(chr(34)) else text}`"


if __name__ == "__main__":
    PAGE.write_text(describe(), encoding="utf-8")
