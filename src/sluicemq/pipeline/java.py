"""The Java that Spark needs. `python -m sluicemq.pipeline.java` prints where it is, or how to
get it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from sluicemq.model.errors import ConfigurationError

JAVA: Final = 17
"""The oldest that Spark 4 runs on."""

_INSTALLED: Final = Path("/usr/lib/jvm")
"""Where Linux distributions put it."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
"""1.8 is what Java 8 calls itself."""


def java_version(java: Path) -> int | None:
    """The major version of that program, or None if it does not run."""
    try:
        found = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(found.stderr)
    return int(match[1]) if match else None


def find_java() -> Path:
    """The home of a Java that is new enough: that of JAVA_HOME, of the PATH, or an installed one.

    Raises ConfigurationError, which says how to get one.
    """
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parent.parent)
    if _INSTALLED.is_dir():
        homes += sorted(_INSTALLED.iterdir())
    for candidate in homes:
        version = java_version(candidate / "bin" / "java")
        if version is not None and version >= JAVA:
            return candidate
    raise ConfigurationError(
        f"The pipeline needs Java {JAVA} or newer, and there is none at JAVA_HOME, on the PATH or "
        f"in {_INSTALLED}. On Debian or Ubuntu: sudo apt install openjdk-{JAVA}-jre-headless"
    )


if __name__ == "__main__":
    try:
        print(find_java())
    except ConfigurationError as error:
        sys.exit(str(error))
