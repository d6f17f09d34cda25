"""The optional compiled build; everything else is in pyproject.toml.

    make compiled                                                  into .venv-compiled
    SLUICE_COMPILE=1 pip wheel --no-build-isolation --no-deps .   a wheel to install elsewhere

Without the variable nothing is compiled, and neither mypy nor a C compiler is needed. With it both
are, and SluiceMQ's dependencies too: mypyc compiles by the types it can see, which is why the
build must not be isolated.

The modules below are those that a message passes through, translated to C by mypyc as one group
so that they call each other without the interpreter. They are ordinary Python, and the .py files
are installed beside what was made of them. A module that derives from a compiled class has to be
compiled too. Not among them, because mypyc cannot: modules that define msgspec structs
(model/destination, broker/codec, broker/settings), and classes that derive from
asyncio.Protocol (server/connection).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

COMPILED = {
    "model": ("dead_letters", "message"),
    "broker": (
        "attachment",
        "broker",
        "dead_letters",
        "destinations",
        "dispatch",
        "fan_out",
        "operations",
        "publishing",
        "records",
        "redelivery",
        "routing",
        "scheduler",
        "selector_rescan",
        "state",
        "stats",
        "subscription",
        "transaction",
    ),
    "broker/pending": ("backlog", "cursor", "entry", "queue"),
    "journal": ("append", "format", "liveness", "log"),
    "protocols": ("channel", "framing"),
    "protocols/jmq": ("wire",),
    "protocols/msglite": ("mapping", "session", "wire"),
    "protocols/phpmq": ("session", "wire"),
    "protocols/vibemq": ("wire",),
    "server": ("clock",),
}


def extensions() -> list[Extension]:
    """Return the extensions to compile: none unless SLUICE_COMPILE=1."""
    if os.environ.get("SLUICE_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    version = "{}.{}".format(*sys.version_info)
    package = Path("src/sluicemq")
    paths = [
        str(package / package_name / f"{name}.py")
        for package_name, names in COMPILED.items()
        for name in names
    ]
    return mypycify(["--python-version", version, *paths], group_name="sluicemq", opt_level="3")


setup(ext_modules=extensions())
