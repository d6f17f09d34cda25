"""Spark session with settings for a small machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from sluicemq.pipeline.java import find_java

SETTINGS: Final = {
    # The second number is the number of attempts: with local[2], one lost worker ends the query.
    "spark.master": "local[2,4]",
    "spark.driver.memory": "2g",
    # A stack overflow in a query's thread (deep plan, long traceback) ends it without an error.
    "spark.driver.extraJavaOptions": "-Xss4m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.adaptive.enabled": "false",
}
"""Defaults for a machine with two cores; settings of spark-submit take precedence."""

NEEDED: Final = {
    "spark.sql.session.timeZone": "UTC",
}
"""Settings that the pipeline requires."""

CHECKPOINTS: Final = "spark.sql.streaming.checkpointFileManagerClass"
LOCAL_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Halves the cost of a small micro-batch. Requires atomic renames, which object storage lacks, so
it is set in local mode and not on a cluster."""


def session(
    name: str = "sluicemq", settings: dict[str, str] | None = None, log: Path | None = None
) -> SparkSession:
    """Return the Spark session of this process, or create it.

    A new session has SETTINGS, NEEDED and `settings`; the later ones take precedence. The output of
    Spark and its workers is appended to the file `log`, or goes to standard error. Raises
    ConfigurationError if there is no supported Java.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(find_java())
    # Otherwise workers use the first python3 on the PATH, not this virtual environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    configured: dict[str, str] = {}
    if submitted:
        SparkContext._ensure_initialized()  # makes the submitted settings visible to SparkConf
        configured = dict(SparkConf().getAll())
    effective = {**SETTINGS, **configured, **NEEDED, **(settings or {})}
    if effective["spark.master"].startswith("local"):
        effective.setdefault(CHECKPOINTS, LOCAL_CHECKPOINTS)
    builder = SparkSession.builder.appName(name)
    for key, value in effective.items():
        builder = builder.config(key, value)
    with _heard_by(log):
        return builder.getOrCreate()


@contextmanager
def _heard_by(log: Path | None) -> Iterator[None]:
    """Redirect the standard error of processes started in this context to that file.

    Spark has no setting for the output of its workers and before its logging starts."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    usual = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(usual, 2)
        os.close(usual)
