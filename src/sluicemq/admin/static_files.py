"""Endpoints that serve the files of the console: the HTML page, modules and styles in `console/`.

    /            redirect to the console
    /console/    the page; browsers revalidate it each time
    /console/{version}/{file}    all other files; browsers may cache them for ever

`version` is a hash of all files, and the ETag of each. Modules import each other by relative paths,
so all loaded files have the same version, and a browser with a filled cache requests one file only.
The files contain no data of the broker; the console gets all data from the API.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from sluicemq.admin.endpoints import ApiContext, Call, handles
from sluicemq.admin.errors import ApiError
from sluicemq.management.operation import ApiOperation, Need, NoParameters, ParametersT

INDEX: Final = "index.html"
MEDIA: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Media types by the suffix of the file name."""
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content security policy: no foreign content, no inline scripts or styles, no markup from text."""
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers in addition to those of all responses (`app.HEADERS`)."""
REVALIDATE: Final = "no-cache"
IMMUTABLE: Final = "public, max-age=31536000, immutable"
_ACCEPTS_GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|\Z))", re.IGNORECASE)


class StaticFile(NamedTuple):
    """A file with its headers; `packed` is its content in gzip format."""

    media: str
    content: bytes
    packed: bytes


class StaticFiles(NamedTuple):
    """All files by their paths below `console/`; the page refers to their version."""

    version: str
    files: Mapping[str, StaticFile]


@cache
def load_static_files() -> StaticFiles:
    """Return the files of this installation."""
    contents = _read()
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    version = digest.hexdigest()[:16]
    contents[INDEX] = contents[INDEX].replace(b"{version}", version.encode())
    files = {
        name: StaticFile(MEDIA[name.rpartition(".")[2]], content, gzip.compress(content, mtime=0))
        for name, content in contents.items()
    }
    return StaticFiles(version, files)


def _read() -> dict[str, bytes]:
    root = Path(__file__).parent / "console"
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*.*")
        if path.suffix[1:] in MEDIA
    }


class ConsoleFile(msgspec.Struct, frozen=True):
    """A file of the console."""

    rest: str


def _console(
    path: str, summary: str, parameters: type[ParametersT]
) -> ApiOperation[ParametersT, bytes]:
    return ApiOperation(
        "getConsole",
        "GET",
        path,
        Need.NOTHING,
        summary,
        parameters,
        bytes,
        media="text/html",
        prefix="",
    )


class ConsoleService:
    """Handlers of `/` and `/console`."""

    def __init__(self, context: ApiContext) -> None:
        self._files = load_static_files()

    @handles(_console("/", "Redirect to the console", NoParameters))
    @handles(_console("/console", "Redirect to the console", NoParameters))
    async def enter(self, call: Call, parameters: NoParameters) -> Response:
        """Redirect to the console. The location is relative, so that it holds behind a proxy that
        adds a path."""
        return Response(status_code=307, headers={"Location": "console/"})

    @handles(_console("/console/{*rest}", "The console's files", ConsoleFile))
    async def serve(self, call: Call, parameters: ConsoleFile) -> Response:
        """Return a file of the console."""
        rest = parameters.rest
        if not rest:
            return self._send(call, INDEX, REVALIDATE)
        version, _, name = rest.partition("/")
        if version != self._files.version or name not in self._files.files or name == INDEX:
            raise ApiError(404, "not-found", "the console has no such file")
        return self._send(call, name, IMMUTABLE)

    def _send(self, call: Call, name: str, cache_control: str) -> Response:
        tag = f'"{self._files.version}"'
        headers = {
            **HEADERS,
            "Cache-Control": cache_control,
            "ETag": tag,
            "Vary": "Accept-Encoding",
        }
        request_headers = call.request.headers
        if tag in request_headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        file = self._files.files[name]
        content = file.content
        if _ACCEPTS_GZIP.search(request_headers.get("accept-encoding", "")):
            content = file.packed
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers, media_type=file.media)
