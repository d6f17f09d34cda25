"""Archive of the classes that Spark's JVM loads (class data sharing, JEP 350).

    python -m sluicemq.pipeline.class_archive FILE    runs a short job, and writes the archive

A JVM maps the archive instead of reading, parsing and verifying 20,000 classes, which takes a third
of the processor time of a short command. It ignores an archive of another version of Java or other
jars, so that a missing or old one only costs that time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from sluicemq.pipeline import jars
from sluicemq.pipeline.delta import LakeTable, Tag
from sluicemq.pipeline.session import SHORT_JOB, session

_TIMEOUT: Final = 600.0
"""Seconds for the job and the writing of the archive, which take 25 on two cores."""


def prepare() -> None:
    """Create the home of Spark for local sessions, and its class archive, if they are not there.

    A JVM that cannot write archives, and an environment that cannot be written to, are no errors:
    sessions work without an archive.
    """
    home = jars.local_home()
    if not os.access(home if home.exists() else home.parent, os.W_OK):
        return
    home.mkdir(parents=True, exist_ok=True)
    for link in jars.LINKS:
        if not (home / link).exists():
            (home / link).unlink(missing_ok=True)  # of an environment that was moved
            # `conf` need not exist yet
            (home / link).symlink_to(Path(pyspark.__file__).parent / link)
    release = jars.find_java() / "release"
    java = release.read_text() if release.is_file() else str(release)
    stamp, content = home / "ARCHIVED", f"{pyspark.__version__}\n{java}"
    archive = jars.class_archive()
    if stamp.is_file() and stamp.read_text() == content:
        return
    archive.unlink(missing_ok=True)
    command = [sys.executable, "-m", "sluicemq.pipeline.class_archive", str(archive)]
    try:
        subprocess.run(command, capture_output=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        archive.unlink(missing_ok=True)
    stamp.write_text(content)


def main(archive: str) -> None:
    """Run a job that loads the classes of a session, of Delta's writes, and of merges."""
    options = f"{SHORT_JOB} -XX:ArchiveClassesAtExit={archive}"
    spark = session("class archive", {"spark.driver.extraJavaOptions": options})
    rows = spark.range(1000).selectExpr("id", "string(id % 7) AS text")
    with tempfile.TemporaryDirectory() as directory:
        table = LakeTable("bronze.classes", f"{directory}/table", rows.schema, keys=("id",))
        table.append(rows, Tag("classes", 1))
        table.merge(rows, tag=Tag("classes", 2))
        table.read(spark).groupBy("text").count().collect()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
