"""Files on any file system that Spark knows, by Hadoop's interface."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class HadoopFiles:
    """Small files on the file system of a lake, which need not be local."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        java: Any = spark
        self._jvm = java._jvm
        self._path = self._jvm.org.apache.hadoop.fs.Path
        configuration = java._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(location).getFileSystem(configuration)

    def exists(self, location: str) -> bool:
        return bool(self._files.exists(self._path(location)))

    def names(self, location: str) -> list[str]:
        """Return the names in a directory; empty if there is none."""
        if not self.exists(location):
            return []
        return [each.getPath().getName() for each in self._files.listStatus(self._path(location))]

    def read(self, location: str) -> str:
        stream = self._files.open(self._path(location))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def remove(self, location: str) -> None:
        """Remove a file, or a directory with everything in it."""
        self._files.delete(self._path(location), True)

    def qualified(self, location: str) -> str:
        """Return a location as a URI with its scheme, as catalogs show it."""
        return str(self._files.makeQualified(self._path(location)).toString())
