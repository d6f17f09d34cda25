"""Java, and the Java libraries that Spark lacks: Delta Lake, and the connectors of object stores.

`make setup` and `sluicemq pipeline jars` resolve them once into a directory of the Python
environment; sessions add them from there, so that no session needs a network:

    ENVIRONMENT/share/sluicemq/jars/delta/*.jar     tables
    ENVIRONMENT/share/sluicemq/jars/s3a/*.jar ...   one directory per scheme of a lake's URI
    ENVIRONMENT/share/sluicemq/spark/               home of Spark for local sessions, with the
                                                    class archive (class_archive.py)

Spark's own resolver (Ivy) fetches them from Maven Central, or from the repositories that its
settings name (spark.jars.repositories, spark.jars.ivySettings).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Final

import pyspark

from sluicemq.model.errors import ConfigurationError

DELTA: Final = "delta"
CONNECTORS: Final = {
    "s3a": "hadoop-aws",
    "abfss": "hadoop-azure",
    "abfs": "hadoop-azure",
    "gs": "hadoop-gcp",
}
"""Artifact of Hadoop that reads and writes the URIs of a scheme."""

LINKS: Final = ("bin", "conf", "jars", "sbin")
"""Directories of the PySpark package that the home of local sessions links to."""
_SCALA: Final = "2.13"
_VERSIONED: Final = re.compile(r"(?P<name>.+?)[-_](?P<version>\d[\w.-]*)\.jar")
_TIMEOUT: Final = 1800.0
"""Seconds for all downloads: the connector of S3 has 690 MB."""

JAVA: Final = 17
"""Minimum version for Spark 4."""

_INSTALLED: Final = Path("/usr/lib/jvm")
"""Directory in which Linux distributions install Java."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
"""Pattern of the version; Java 8 reports 1.8."""


def directory() -> Path:
    """Return the directory of the jars in this Python environment."""
    return Path(sys.prefix) / "share" / "sluicemq" / "jars"


def jars(name: str) -> list[Path]:
    """Return the jars of DELTA or of a scheme in CONNECTORS.

    Empty if Spark's own directory has the library, as in a distribution with Delta. Raises
    ConfigurationError with the command that fetches missing ones.
    """
    artifact = CONNECTORS.get(name, "delta-spark")
    if any((spark_home() / "jars").glob(f"{artifact}*.jar")):
        return []
    paths = sorted((directory() / name).glob("*.jar"))
    if not paths:
        option = "" if name == DELTA else f" --for {name}"
        raise ConfigurationError(
            f"the Java libraries for {name} are not in {directory() / name}: "
            f"sluicemq pipeline jars{option} fetches them; on a host without a network, copy that "
            "directory from another host (sluicemq pipeline jars --to DIR)"
        )
    return paths


def spark_home() -> Path:
    """Return the directory of Spark: SPARK_HOME, or that of the PySpark package."""
    home = os.environ.get("SPARK_HOME")
    return Path(home) if home else Path(pyspark.__file__).parent


def local_home() -> Path:
    """Return the home of Spark for sessions on one machine, which may not exist.

    It is the PySpark package without `python`: workers import PySpark from the environment, and not
    from the pyspark.zip there, which has no compiled modules and costs each of them a second. The
    JVM ignores a class archive if Spark's jars have another path.
    """
    return directory().parent / "spark"


def class_archive() -> Path:
    """Return the path of the class archive for `local_home`, which may not exist."""
    return local_home() / "classes.jsa"


def coordinate(name: str) -> str:
    """Return the Maven coordinate of DELTA or of a connector, for the installed Spark.

    Raises ConfigurationError for an unknown name, and if Spark's version is unknown."""
    if name == DELTA:
        spark = ".".join(pyspark.__version__.split(".")[:2])
        return f"io.delta:delta-spark_{spark}_{_SCALA}:{metadata.version('delta-spark')}"
    if name not in CONNECTORS:
        raise ConfigurationError(
            f"--for: {name!r} is none of {', '.join(CONNECTORS)}, the schemes with a connector"
        )
    for jar in (spark_home() / "jars").glob("hadoop-client-api-*.jar"):
        version = jar.stem.removeprefix("hadoop-client-api-")
        return f"org.apache.hadoop:{CONNECTORS[name]}:{version}"
    raise ConfigurationError(f"{spark_home() / 'jars'} has no hadoop-client-api jar")


def fetch(names: Collection[str] = (DELTA,), target: Path | None = None) -> list[Path]:
    """Resolve the libraries into `target` (default: `directory()`), and return their jars.

    Libraries that are there in the required version are not fetched again. Raises
    ConfigurationError with the resolver's explanation.
    """
    target = target or directory()
    paths: list[Path] = []
    for name in names:
        requested = coordinate(name)
        folder, stamp = target / name, target / name / "RESOLVED"
        if not stamp.is_file() or stamp.read_text() != requested:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for jar in _resolve(requested):
                try:
                    os.link(jar, folder / jar.name)
                except OSError:  # another file system
                    shutil.copyfile(jar, folder / jar.name)
            stamp.write_text(requested)
        paths += sorted(folder.glob("*.jar"))
    return paths


def _resolve(requested: str) -> list[Path]:
    """Return the jars of a coordinate, without those that Spark has, from Ivy's cache."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "PYSPARK_SUBMIT_ARGS": f"--packages {requested} pyspark-shell",
    }
    # A process of its own: packages are resolved when the JVM starts, which happens once.
    try:
        process = subprocess.run(
            [sys.executable, "-m", __name__],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"{requested} was not downloaded within {_TIMEOUT:g} s: run the command again, which "
            "keeps the files that are complete"
        ) from None
    if process.returncode:
        reasons = [line.strip() for line in process.stderr.splitlines() if "not found" in line]
        reason = reasons[0] if reasons else process.stderr.strip()[-500:]
        raise ConfigurationError(
            f"{requested} cannot be resolved: {reason}. Is Maven Central reachable? Another "
            "repository: set spark.jars.repositories or spark.jars.ivySettings in "
            f"{spark_home() / 'conf' / 'spark-defaults.conf'}"
        )
    present = {_artifact(jar.name) for jar in (spark_home() / "jars").glob("*.jar")}
    return [
        jar
        for jar in map(Path, process.stdout.split())
        if _artifact(jar.name.partition("_")[2]) not in present
    ]


def _artifact(file: str) -> str:
    match = _VERSIONED.fullmatch(file)
    return match["name"] if match else file


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


def _print_resolved() -> None:
    """Start Spark's launcher, which resolves the packages, and print the paths of their jars."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    for jar in SparkConf().get("spark.jars", "").split(","):
        print(jar.removeprefix("file://"))


if __name__ == "__main__":
    _print_resolved()
