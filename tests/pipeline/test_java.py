"""Finding a Java that Spark can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline import jars


def install(home: Path, version: str) -> Path:
    """Write a program that reports a version of Java."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine without Java; return the directory for installations."""
    directory = tmp_path / "jvm"
    directory.mkdir()
    monkeypatch.setattr(jars, "_INSTALLED", directory)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return directory


@pytest.mark.parametrize(
    ("reported", "version"), [("1.8.0_402", 8), ("11.0.22", 11), ("17.0.15", 17), ("25", 25)]
)
def test_version_of_java_is_parsed(tmp_path: Path, reported: str, version: int) -> None:
    assert jars.java_version(install(tmp_path / "j", reported) / "bin" / "java") == version


def test_error_without_java_contains_instructions() -> None:
    with pytest.raises(ConfigurationError, match=r"sudo apt install openjdk-17-jre-headless"):
        jars.find_java()


def test_old_java_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "old", "11.0.1")))
    with pytest.raises(ConfigurationError):
        jars.find_java()


def test_missing_home_is_skipped(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    expected = install(bare / "java-21", "21.0.1")
    assert jars.find_java() == expected


def test_java_home_has_precedence(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(bare / "java-21", "21.0.1")
    expected = install(tmp_path / "mine", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(expected))
    assert jars.find_java() == expected


def test_java_on_path_is_found(tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(bare / "java-17", "17.0.1")
    expected = install(tmp_path / "elsewhere", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(expected / "bin" / "java")
    assert jars.find_java() == expected
