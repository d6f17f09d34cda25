"""Options of Java for the least processor time in jobs of seconds."""

from __future__ import annotations

from typing import Final

from sluicemq.pipeline.jars import class_archive
from sluicemq.pipeline.session import SHORT_JOB

SMALL_HEAP: Final = f"{SHORT_JOB} -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""Options of a session, which adds the class archive.

A tenth less processor time than the default collector, which also starts several concurrent
collections while Spark's classes are loaded."""
WITH_ARCHIVE: Final = f"{SMALL_HEAP} -XX:SharedArchiveFile={class_archive()}"
"""Options of a process that is started with `local_home` as the home of Spark."""
