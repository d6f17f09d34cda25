"""Spark session with Delta Lake, on one machine or on a cluster.

Settings come, in this order of precedence, from the caller (`--conf`), from spark-submit, from
spark-defaults.conf, and from here; those of REQUIRED always from here. Without a master anywhere,
Spark runs in this process.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext, StorageLevel
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from sluicemq.model.errors import ConfigurationError, SluiceError
from sluicemq.pipeline import jars

MAX_LOG_BYTES: Final = 10 << 20
"""Size of Spark's log above which a new session empties it."""
_OPTIONS: Final = "spark.driver.extraJavaOptions"
# A stack overflow in a query's thread (deep plan, long traceback) ends it without an error.
# Warnings of the JVM go to standard output by default, which has the result of the command.
_JVM: Final = "-Xss4m -Xlog:disable -Xlog:all=warning:stderr"
SHORT_JOB: Final = f"{_JVM} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Options of the JVM for jobs of less than a minute: code is compiled once, and fast.

Without its size, the cache of compiled code would be so small that it is swept all the time."""

LOCAL: Final = {
    # Queries are planned in the process that runs their tasks. The optimising compiler takes a
    # fifth of a backfill's processor time, part of it for code of planning, which is called some
    # thousand times: methods must be called more often here. Loops keep their own limit.
    # The parallel collector takes less processor time than G1; its longer pauses do no harm.
    _OPTIONS: (
        f"{_JVM} -XX:+UseParallelGC -XX:Tier4InvocationThreshold=50000 "
        "-XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    ),
    # Two tasks a core: the short ones of one query must not queue behind the long ones of another.
    # The last number is the number of attempts: without, one lost worker ends the query.
    "spark.master": f"local[{2 * len(os.sched_getaffinity(0))},4]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    # Each task that computes a table's state generates code for the actions of Delta's log, which
    # takes longer than a small commit's own tasks. The default of 50 costs 15 s for the first read.
    "spark.databricks.delta.snapshotPartitions": "1",
    # Plans are described for the UI, which is off here. The default, "formatted" with 25 fields of
    # each operator, costs 15 % of the processor time of a small batch.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # Files from half this size on are not compacted while a query runs: that of fifty large ones
    # takes minutes, in which the table is not updated. `pipeline maintain` compacts them.
    "spark.databricks.delta.autoCompact.maxFileSize": str(16 << 20),
    # Compression took a fifth of the processor time of bronze and silver with the default, 3.
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    # Halves the cost of a small micro-batch. Requires atomic renames, which object storage lacks.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}
"""Defaults for Spark on one small machine."""

COMMON: Final = {
    _OPTIONS: _JVM,
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    # Each function of PySpark would pass its calling line to the JVM, for errors: four calls
    # instead of one, a third of the time to describe the rows of a typed table.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # A merge needs about 100 generated classes; the default of 100 compiles all of them each time.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Otherwise a task sorts its rows by partition, with their bodies, which spills a large batch.
    # It still does if it has rows of more than eight partitions.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # VACUUM lists a table by as many tasks, 10,000 by default, however few its files are.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}
"""Defaults on one machine and on a cluster."""

REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Otherwise times lose their zone for readers other than Spark.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings that the pipeline requires."""

_SETTING: Final = re.compile(r"(?P<name>spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(?P<value>.+)")
"""Line of spark-defaults.conf, which Spark reads as Java's properties."""
_EXTENSIONS: Final = "spark.sql.extensions"
_DELTA: Final = "io.delta.sql.DeltaSparkSessionExtension"
_JARS: Final = "spark.jars"
_END_SECONDS: Final = 1.0
"""Time from the loss of the connection to a Java process to its end."""


def session(
    name: str = "sluicemq",
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
    *,
    schemes: Collection[str] = (),
) -> SparkSession:
    """Return the Spark session of this process, or create it.

    settings   take precedence over all others, except for REQUIRED
    log        file to which the output of Spark and its workers is appended; None = as this process
    schemes    schemes of URIs that the session is to read and write (jars.CONNECTORS)

    Raises ConfigurationError if there is no supported Java, or no library for Delta or a scheme;
    SluiceError if Spark's Java process ends before it is ready.
    """
    active_session = SparkSession.getActiveSession()
    if active_session is not None:
        return active_session
    # Otherwise workers use the first python3 on the PATH, not this virtual environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    libraries = [jars.DELTA, *(scheme for scheme in schemes if scheme in jars.CONNECTORS)]
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if is_submitted:
        SparkContext._ensure_initialized()  # makes the submitted settings visible to SparkConf
        configured = dict(SparkConf().getAll())
        _check_submitted()
    else:
        os.environ["JAVA_HOME"] = str(jars.find_java())
        configured = _spark_defaults()
    effective = effective_settings(configured, settings or {})
    if not is_submitted:
        paths = [str(jar) for library in libraries for jar in jars.jars(library)]
        effective[_JARS] = ",".join([*filter(None, [effective.get(_JARS)]), *paths])
        if _has_local_master(effective):
            _use_local_home(effective)
    with _output_to(log):
        try:
            return SparkSession.builder.appName(name).config(map={**effective}).getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise SluiceError(
                "Spark's Java process ended before it was ready. Its output has the reason, such "
                "as an option that Java rejects; without any, memory was possibly exhausted"
            ) from error


def check_java() -> None:
    """Raise SluiceError if the session's Java process, which this process started, has ended."""
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        code = None if process is None else process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return
    if code == -signal.SIGKILL:
        raise SluiceError(
            "Spark's Java process was killed by signal 9, possibly because memory was exhausted. "
            "Run the command again"
        )
    if code is not None:
        raise SluiceError(f"Spark's Java process ended with status {code}. Run the command again")


def effective_settings(
    configured: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of a session, except for its jars.

    configured  settings of spark-submit or spark-defaults.conf
    settings    settings of the caller, which take precedence, except over REQUIRED
    """
    requested = {**configured, **settings, **REQUIRED}
    effective = {**COMMON, **(LOCAL if _has_local_master(requested) else {}), **requested}
    extensions = [extension for extension in effective.get(_EXTENSIONS, "").split(",") if extension]
    effective[_EXTENSIONS] = ",".join(dict.fromkeys([*extensions, _DELTA]))
    return effective


def _has_local_master(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", "local").startswith("local")


def is_local(spark: SparkSession) -> bool:
    """Return True if the session runs its tasks in the process that plans them."""
    return _has_local_master({"spark.master": str(spark.sparkContext.master)})


def materialized(rows: DataFrame) -> DataFrame:
    """Compute rows once, and return them without their query.

    Unlike cached rows, they are not computed again when one of the tables they come from changes.
    On a cluster they have two copies, because the part of a lost worker cannot be computed again.
    """
    return rows.localCheckpoint(
        storageLevel=StorageLevel.MEMORY_AND_DISK
        if is_local(rows.sparkSession)
        else StorageLevel.MEMORY_AND_DISK_2
    )


@contextmanager
def cached(
    rows: DataFrame, level: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER
) -> Iterator[DataFrame]:
    """Keep rows, once they have been computed, within this context."""
    rows.persist(level)
    try:
        yield rows
    finally:
        rows.unpersist()


def _check_submitted() -> None:
    """Check the class path of a submitted program, which cannot be extended any more."""
    utils = SparkContext._jvm.org.apache.spark.util.Utils  # type: ignore[union-attr]
    if not utils.classIsLoadable(_DELTA):
        raise ConfigurationError(
            "Delta Lake is not on the class path: spark-submit --jars "
            '"$(sluicemq pipeline jars)" adds it'
        )


def _spark_defaults() -> dict[str, str]:
    """Return the settings of spark-defaults.conf, if there is one."""
    conf = os.environ.get("SPARK_CONF_DIR")
    file = (Path(conf) if conf else jars.spark_home() / "conf") / "spark-defaults.conf"
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    return {
        match["name"]: match["value"]
        for match in (_SETTING.fullmatch(line.strip()) for line in lines)
        if match
    }


def _use_local_home(effective: dict[str, str]) -> None:
    """Use the home and the class archive that `sluicemq pipeline jars` has prepared."""
    home, archive = jars.local_home(), jars.class_archive()
    if "SPARK_HOME" in os.environ or not (home / "bin" / "spark-submit").exists():
        return
    os.environ["SPARK_HOME"] = str(home)
    options = effective[_OPTIONS]
    if archive.exists() and "Archive" not in options:
        effective[_OPTIONS] = f"{options} -XX:SharedArchiveFile={archive}"


@contextmanager
def _output_to(log: Path | None) -> Iterator[None]:
    """Append the output of processes started in this context to that file. One above MAX_LOG_BYTES
    is copied and emptied before: running sessions continue to write to it.

    Spark has no setting for the output of its workers and before its logging starts, and Delta
    prints the result of VACUUM."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    originals = {stream: os.dup(stream) for stream in (1, 2)}
    try:
        with log.open("ab") as file:
            if log.stat().st_size > MAX_LOG_BYTES:
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
                file.truncate(0)
            for stream in originals:
                os.dup2(file.fileno(), stream)
        yield
    finally:
        for stream, original in originals.items():
            os.dup2(original, stream)
            os.close(original)
