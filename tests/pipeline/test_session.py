"""Settings of Spark, and the Java libraries that a session needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline import jars, session
from sluicemq.pipeline.jars import find_java
from sluicemq.pipeline.jobs.lake import SCHEMES

EXTENSIONS = "spark.sql.extensions"


def test_settings_on_one_machine() -> None:
    settings = session.effective_settings({}, {})
    assert settings["spark.master"].startswith("local[")
    assert settings["spark.sql.shuffle.partitions"] == "2"
    assert settings[EXTENSIONS] == "io.delta.sql.DeltaSparkSessionExtension"


def test_settings_of_cluster_are_kept() -> None:
    configured = {
        "spark.master": "spark://head:7077",
        "spark.sql.session.timeZone": "Europe/Paris",
        EXTENSIONS: "org.example.Extension",
    }
    settings = session.effective_settings(configured, {})
    assert "spark.sql.shuffle.partitions" not in settings
    assert "spark.driver.memory" not in settings
    assert settings["spark.sql.session.timeZone"] == "UTC"
    # Spark's default of 10,000 tasks for each VACUUM takes many minutes on two cores
    assert settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] == "32"
    assert settings[EXTENSIONS] == ("org.example.Extension,io.delta.sql.DeltaSparkSessionExtension")


def test_caller_overrides_all_settings_but_time_zone() -> None:
    options = {
        "spark.master": "local[1]",
        "spark.driver.memory": "5g",
        "spark.sql.session.timeZone": "Europe/Paris",
    }
    settings = session.effective_settings({"spark.driver.memory": "1g"}, options)
    assert (settings["spark.master"], settings["spark.driver.memory"]) == ("local[1]", "5g")
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.sql.shuffle.partitions"] == "2"


def test_warnings_of_jvm_are_not_in_output_of_command() -> None:
    java = find_java() / "bin" / "java"
    options = session.effective_settings({}, {})["spark.driver.extraJavaOptions"].split()
    # on a machine without large pages, the JVM warns of it
    command = [str(java), *options, "-XX:+UseLargePages", "-version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == ""


def test_java_process_that_does_not_start_is_explained(tmp_path: Path) -> None:
    option = "--conf=spark.driver.extraJavaOptions=-Xss1k"
    command = [sys.executable, "-m", "sluicemq.cli", "pipeline", "maintain", option]
    result = subprocess.run([*command, "--lake", tmp_path], capture_output=True, text=True)
    assert result.returncode == 1
    assert "error: Spark's Java process ended before it was ready" in result.stderr
    assert "Traceback" not in result.stderr
    log = tmp_path / "_logs" / "spark.log"
    assert str(log) in result.stderr.replace("\n", "")
    assert "Could not create the Java Virtual Machine" in log.read_text()


@pytest.mark.parametrize(("limit", "copied"), [(3, False), (2, True)])
def test_long_log_is_copied_and_emptied(
    limit: int, copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running session continues to write to the log and not to the copy."""
    monkeypatch.setattr(session, "MAX_LOG_BYTES", limit)
    log = tmp_path / "_logs" / "spark.log"
    with session._output_to(log):
        os.write(2, b"old")
        running = os.dup(1)
    with session._output_to(log):
        os.write(2, b"new")
    os.write(running, b"!")
    os.close(running)
    assert log.read_bytes() == (b"new!" if copied else b"oldnew!")
    assert [file.read_bytes() for file in log.parent.glob("*.1")] == [b"old"] * copied


def test_local_session_uses_class_archive(tmp_path: Path) -> None:
    """Otherwise the start of each session takes a third more processor time."""
    log = tmp_path / "classes"
    program = (
        "from sluicemq.pipeline.session import session; session(settings={"
        f"'spark.driver.extraJavaOptions': '-Xlog:class+load:file={log}'"
        "}).stop()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    lines = log.read_text().splitlines()
    classes = [line for line in lines if " org.apache.spark.sql." in line]
    archived = [line for line in classes if "source: shared objects file (top)" in line]
    assert len(archived) > len(classes) / 2


def test_settings_of_spark_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert session._spark_defaults() == {}
    (tmp_path / "spark-defaults.conf").write_text(
        "# comment\nspark.master   spark://head:7077\n\n"
        "spark.driver.extraJavaOptions -Xss4m -Da=b\nspark.empty\n"
        "spark.driver.memory=5g\n spark.app.name = a=b \nspark.executor.cores: 2\n"
    )
    assert session._spark_defaults() == {
        "spark.master": "spark://head:7077",
        "spark.driver.extraJavaOptions": "-Xss4m -Da=b",
        "spark.driver.memory": "5g",
        "spark.app.name": "a=b",
        "spark.executor.cores": "2",
    }


def test_missing_libraries_are_reported_with_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "directory", lambda: tmp_path)
    with pytest.raises(ConfigurationError, match=r"sluicemq pipeline jars fetches them"):
        jars.jars(jars.DELTA)
    with pytest.raises(ConfigurationError, match=r"sluicemq pipeline jars --for s3a fetches them"):
        jars.jars("s3a")
    not_local = {*SCHEMES} - {"file", "hdfs"}  # Spark itself has these two
    assert not_local == jars.CONNECTORS.keys()


def test_distribution_with_delta_downloads_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    (tmp_path / "jars" / "hadoop-client-api-3.4.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert jars.jars(jars.DELTA) == []
    assert jars.coordinate("s3a") == "org.apache.hadoop:hadoop-aws:3.4.1"


def test_connectors_that_do_not_exist_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="--for: 'ftp' is none of s3a, abfss, abfs, gs"):
        jars.coordinate("ftp")


def test_download_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def expire(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(jars, "find_java", lambda: Path("/java"))
    monkeypatch.setattr(subprocess, "run", expire)
    with pytest.raises(ConfigurationError, match="g:a:1 was not downloaded within 1800 s: run"):
        jars._resolve("g:a:1")


def test_existing_libraries_are_not_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No resolver runs in tests: the second call must not need one."""
    source = tmp_path / "cache" / "io.delta_delta-spark_4.2_2.13-4.4.0.jar"
    source.parent.mkdir()
    source.write_bytes(b"classes")
    calls: list[str] = []

    def resolve(requested: str) -> list[Path]:
        calls.append(requested)
        return [source]

    monkeypatch.setattr(jars, "_resolve", resolve)
    target = tmp_path / "target"
    assert jars.fetch(target=target) == jars.fetch(target=target)
    assert len(calls) == 1
    assert (target / "delta" / source.name).read_bytes() == b"classes"
    (target / "delta" / "RESOLVED").write_text("an older version")
    jars.fetch(target=target)
    assert len(calls) == 2
