"""Detection of the Java that Spark needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from sluicemq.model.errors import ConfigurationError

JAVA: Final = 17
"""Minimum version for Spark 4."""

_INSTALLED: Final = Path("/usr/lib/jvm")
"""Directory in which Linux distributions install Java."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
"""Pattern of the version; Java 8 reports 1.8."""


def java_version(java: Path) -> int | None:
    """Return the major version of a java program, or None if it does not run."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(result.stderr)
    return int(match[1]) if match else None


def find_java() -> Path:
    """Return the home of a supported Java: from JAVA_HOME, the PATH, or an installed one.

    Raises ConfigurationError with instructions to install one.
    """
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parent.parent)
    homes += sorted(_INSTALLED.glob("*"))
    for candidate in homes:
        version = java_version(candidate / "bin" / "java")
        if version is not None and version >= JAVA:
            return candidate
    raise ConfigurationError(
        f"The pipeline needs Java {JAVA} or newer, and there is none at JAVA_HOME, on the PATH or "
        f"in {_INSTALLED}. On Debian or Ubuntu: sudo apt install openjdk-{JAVA}-jre-headless"
    )
