"""A Spark session for a small machine."""

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
    # A second number, or one lost Python worker ends the query: a plain local[2] never tries again.
    "spark.master": "local[2,4]",
    "spark.driver.memory": "2g",
    # A query's thread that runs out of stack, over a deep plan or a long traceback, ends unheard.
    "spark.driver.extraJavaOptions": "-Xss4m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.adaptive.enabled": "false",
}
"""What is best on a machine with two cores. Whatever spark-submit has been told wins."""

NEEDED: Final = {
    "spark.sql.session.timeZone": "UTC",
}
"""What the pipeline relies on."""

CHECKPOINTS: Final = "spark.sql.streaming.checkpointFileManagerClass"
LOCAL_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Halves what a small micro-batch costs. Only right where renaming a file is atomic, which it is
not on object storage: so it is set if everything runs on this machine, and not on a cluster."""


def session(
    name: str = "sluicemq", settings: dict[str, str] | None = None, log: Path | None = None
) -> SparkSession:
    """The Spark session of this process: the one there is, or a new one with SETTINGS, NEEDED and
    `settings`, of which the later win.

    What Spark and its workers say goes to the end of the file `log`, or to standard error. Raises
    ConfigurationError if there is no Java that is new enough.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(find_java())
    # Or workers are run by whatever python3 is on the PATH, not by this virtual environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    told: dict[str, str] = {}
    if submitted:
        SparkContext._ensure_initialized()  # or SparkConf knows nothing of what was submitted
        told = dict(SparkConf().getAll())
    wanted = {**SETTINGS, **told, **NEEDED, **(settings or {})}
    if wanted["spark.master"].startswith("local"):
        wanted.setdefault(CHECKPOINTS, LOCAL_CHECKPOINTS)
    builder = SparkSession.builder.appName(name)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    with _heard_by(log):
        return builder.getOrCreate()


@contextmanager
def _heard_by(log: Path | None) -> Iterator[None]:
    """Processes that are started meanwhile have that file as their standard error, as long as they
    live: Spark has no setting for what is said before its own logging begins, and by workers."""
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
