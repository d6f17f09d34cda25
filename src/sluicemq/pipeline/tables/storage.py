"""Where the files of one table lie: a directory, or a prefix in object storage.

All paths are relative to the table. A Storage travels to executors: it holds no connection.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow.fs as fs


@dataclass(frozen=True)
class Stored:
    """One file. size in bytes; modified: when it was written."""

    path: str
    size: int
    modified: datetime


@dataclass(frozen=True)
class Storage:
    """`root` is an absolute path or a URI (s3://, abfss://, gs://, …).

    `options` are credentials and the like for a URI, by the names of Delta's storage options.
    """

    root: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, path: str | os.PathLike[str], options: Mapping[str, str] | None) -> Storage:
        """Takes relative paths and file:// URIs too."""
        text = os.fspath(path)
        if text.startswith("file:"):
            text = "/" + text.removeprefix("file:").lstrip("/")
        if "://" not in text:
            text = os.path.abspath(text)
        return cls(text.rstrip("/") or "/", dict(options or {}))

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "options": self.options}

    @property
    def local(self) -> bool:
        return "://" not in self.root

    @cached_property
    def filesystem(self) -> fs.FileSystem:
        """Rooted at the table."""
        if self.local:
            return fs.SubTreeFileSystem(self.root, fs.LocalFileSystem())
        # Delta's object store speaks to all of them, under one set of options.
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.root, dict(self.options)))

    def location(self, path: str) -> str:
        """As other programs name that file."""
        return f"{self.root}/{path}"

    def create(self, path: str, buffer_bytes: int | None = None) -> Any:
        """An output stream for a new file."""
        if self.local:
            os.makedirs(os.path.dirname(self.location(path)), exist_ok=True)
        return self.filesystem.open_output_stream(path, compression=None, buffer_size=buffer_bytes)

    def remove(self, path: str) -> None:
        """It need not be there."""
        try:
            self.filesystem.delete_file(path)
        except FileNotFoundError:
            return

    def there(self, path: str) -> bool:
        """Whether that file exists."""
        return bool(self.filesystem.get_file_info(path).type == fs.FileType.File)

    def read(self, path: str) -> bytes | None:
        """The whole content of a small file; None if there is none."""
        try:
            with self.filesystem.open_input_stream(path, compression=None) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def put_new(self, path: str, content: bytes) -> bool:
        """Makes a small file, whole from its first moment; False if that name is taken.

        Of several writers one wins on a local disk. In object storage it looks first and then
        writes: there may be one writer only.
        """
        if not self.local:
            if self.there(path):
                return False
            self._write(path, content)
            return True
        draft = self._draft(path, content)
        try:
            os.link(draft, self.location(path))
        except FileExistsError:
            return False
        finally:
            os.unlink(draft)
        return True

    def replace(self, path: str, content: bytes) -> None:
        """Makes a small file or takes its place, at once."""
        if self.local:
            os.replace(self._draft(path, content), self.location(path))
        else:
            self._write(path, content)

    def _write(self, path: str, content: bytes) -> None:
        # Through a buffer: the object store takes bytes, which an unbuffered write does not give.
        with self.create(path, len(content) + 1) as stream:
            stream.write(content)

    def _draft(self, path: str, content: bytes) -> str:
        name = f"{os.path.dirname(path)}/.{uuid.uuid4()}"
        self._write(name, content)
        return self.location(name)

    def listed(self, directory: str = "") -> list[Stored]:
        """All files below, hidden ones included; none if it does not exist."""
        if self.local:
            return list(self._walked(directory))
        found = self.filesystem.get_file_info(
            fs.FileSelector(directory, recursive=True, allow_not_found=True)
        )
        return [
            Stored(info.path.lstrip("/"), info.size, info.mtime or datetime.now(UTC))
            for info in found
            if info.type == fs.FileType.File
        ]

    def _walked(self, directory: str) -> Iterator[Stored]:
        # Arrow's own listing fails when a file or directory comes or goes meanwhile.
        for place, _, names in os.walk(os.path.join(self.root, directory)):
            for name in names:
                whole = os.path.join(place, name)
                try:
                    found = os.stat(whole)
                except FileNotFoundError:
                    continue
                path = os.path.relpath(whole, self.root)
                yield Stored(path, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))
