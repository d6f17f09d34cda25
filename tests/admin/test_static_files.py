"""The files of the console over HTTP, and code that they must not contain."""

from __future__ import annotations

import gzip
import http.client
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html.parser import HTMLParser
from importlib import resources

import pytest

from sluicemq.admin.static_files import (
    INDEX,
    MEDIA,
    POLICY,
    StaticFiles,
    load_static_files,
)
from sluicemq.cli.local import LocalBroker
from tests.server.conftest import Start
from tests.support.http import HTTP, Response


@contextmanager
def open_connection(port: int) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


def request(
    connection: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str
) -> Response:
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    received_headers = {name.lower(): value for name, value in response.getheaders()}
    return Response(response.status, received_headers, response.read())


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with LocalBroker(tmp_path_factory.mktemp("broker"), [HTTP]) as broker:
        yield broker.port("http")


def load_modules() -> dict[str, str]:
    files = load_static_files().files
    return {name: file.content.decode() for name, file in files.items() if name.endswith(".js")}


IMPORT = re.compile(r"""^(?:import|export)\b[^;"()]*?"(\.{1,2}/[^"]+)";""", re.MULTILINE)


def static_imports(name: str, sources: Mapping[str, str]) -> list[str]:
    """Return the modules that a module imports statically, including indirect imports."""
    imports: list[str] = []
    pending = [name]
    while pending:
        module = pending.pop(0)
        if module in imports:
            continue
        imports.append(module)
        for reference in IMPORT.findall(sources[module]):
            pending.append(posixpath.normpath(posixpath.join(posixpath.dirname(module), reference)))
    return imports


class Elements(HTMLParser):
    """Elements and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.tags and data.strip():
            tag = self.tags[-1][0]
            self.texts[tag] = self.texts.get(tag, "") + data


def test_root_redirects_to_the_console(port: int) -> None:
    with open_connection(port) as connection:
        for path in ("/", "/console"):
            response = request(connection, path)
            assert (response.status, response.headers["location"]) == (307, "console/")
        assert request(connection, "/console/").status == 200


def test_page_has_no_inline_scripts_or_styles(port: int) -> None:
    with open_connection(port) as connection:
        response = request(connection, "/console/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    elements = Elements(response.body.decode())
    assert not elements.texts.keys() & {"script", "style"}
    for tag, attributes in elements.tags:
        assert tag != "base"
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href"):
            assert "//" not in attributes.get(name, "")
    scripts = [attributes for tag, attributes in elements.tags if tag == "script"]
    assert all(attributes["src"] for attributes in scripts)


def test_versioned_files_are_immutable(port: int) -> None:
    static_files = load_static_files()
    with open_connection(port) as connection:
        for name in ("app.js", "pages/overview.js", "tokens.css", "icon.svg"):
            response = request(connection, f"/console/{static_files.version}/{name}")
            assert response.status == 200
            assert response.body == static_files.files[name].content
            assert "immutable" in response.headers["cache-control"]
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["content-type"].partition(";")[0] in (
                "text/javascript",
                "text/css",
                "image/svg+xml",
            )


def test_cached_file_is_not_sent_again(port: int) -> None:
    with open_connection(port) as connection:
        first = request(connection, "/console/")
        cached = request(connection, "/console/", If_None_Match=first.headers["etag"])
        assert (cached.status, cached.body) == (304, b"")
        changed = request(connection, "/console/", If_None_Match='"other"')
        assert changed.body == first.body


def test_files_are_compressed_for_clients_with_gzip(port: int) -> None:
    static_files = load_static_files()
    path = f"/console/{static_files.version}/app.js"
    with open_connection(port) as connection:
        response = request(connection, path, Accept_Encoding="br, gzip")
        assert response.headers["content-encoding"] == "gzip"
        assert response.headers["vary"] == "Accept-Encoding"
        assert gzip.decompress(response.body) == static_files.files["app.js"].content
        head = request(connection, path, "HEAD", Accept_Encoding="gzip")
        assert (head.status, head.body) == (200, b"")
        for header in ("gzip;q=0", "br, gzip; q=0.0", "GZIP;Q=0.000, br"):
            response = request(connection, path, Accept_Encoding=header)
            assert "content-encoding" not in response.headers, header
        response = request(connection, path, Accept_Encoding="gzip;q=0.5, br")
        assert response.headers["content-encoding"] == "gzip"


def test_unknown_paths_are_not_found(port: int) -> None:
    static_files = load_static_files()
    paths = (
        "/console/app.js",
        f"/console/{static_files.version}",
        f"/console/{static_files.version}/",
        f"/console/{static_files.version}/{INDEX}",
        f"/console/{static_files.version}/nothing.js",
        f"/console/{'0' * 16}/app.js",
        f"/console/{static_files.version}/../../app.py",
        f"/console/{static_files.version}/%2e%2e/%2e%2e/app.py",
        f"/console/{static_files.version}/..%2f..%2fapp.py",
        f"/console/{static_files.version}//etc/passwd",
        f"/console/{static_files.version}/pages/../app.js",
        f"/console/{static_files.version}/app.js%00",
        f"/console/{static_files.version}/app.js%FF",
        "/console/../api/v1/status",
    )
    with open_connection(port) as connection:
        for path in paths:
            response = request(connection, path)
            assert (response.status, response.code) == (404, "not-found"), path
        assert request(connection, "/console/", "POST").status == 405


def test_page_requires_no_login(start: Start) -> None:
    broker = start(HTTP, environment={"SLUICEMQ_AUTH__REQUIRED": "always"})
    with open_connection(broker.port("http")) as connection:
        assert request(connection, "/console/").status == 200
        assert request(connection, "/api/v1/status").status == 401


def test_every_file_has_a_media_type_and_is_used() -> None:
    files = load_static_files().files
    assert {name.rpartition(".")[2] for name in files} <= set(MEDIA)
    entries = {
        str(entry)
        for entry in (resources.files("sluicemq.admin") / "console").iterdir()
        if entry.is_file()
    }
    assert len(entries) == len([name for name in files if "/" not in name])
    index = files[INDEX].content.decode()
    sources = load_modules()
    loaded = set(static_imports("app.js", sources)) | {"theme.js"}
    while (
        imports := {
            module
            for name in loaded
            for first in dynamic_imports(name, sources[name])
            for module in static_imports(first, sources)
        }
        - loaded
    ):
        loaded |= imports
    assert loaded == set(sources), "modules that are not imported, or that do not exist"
    for name in set(files) - set(sources) - {INDEX}:
        assert f"/{name}" in index, name


def dynamic_imports(name: str, source: str) -> list[str]:
    """Return the modules that a module imports on demand."""
    folder = name.rpartition("/")[0]
    paths = re.findall(r'import\("\./([^"]+)"\)', source)
    return [f"{folder}/{path}" if folder else path for path in paths]


def test_page_preloads_the_modules_of_the_overview() -> None:
    static_files, sources = load_static_files(), load_modules()
    elements = Elements(static_files.files[INDEX].content.decode())
    links = [
        attributes for tag, attributes in elements.tags if attributes.get("rel") == "modulepreload"
    ]
    preloaded = [link["href"].removeprefix(f"{static_files.version}/") for link in links]
    modules_needed = {
        *static_imports("app.js", sources),
        *static_imports("pages/overview.js", sources),
    }
    assert preloaded == sorted(modules_needed)


FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
    r"|srcdoc|\beval\b|new Function|javascript:|\.setHTML|trustedTypes|setAttribute\(\"style"
)


def test_scripts_insert_no_markup_and_load_nothing_from_other_hosts() -> None:
    """The content security policy forbids both; this test fails before a browser does."""
    for name, source in load_modules().items():
        assert not FORBIDDEN.search(source), name
        assert set(re.findall(r"https?://[^\"'` )]+", source)) <= {"http://www.w3.org/2000/svg"}, (
            name
        )
    for name, file in load_static_files().files.items():
        if name.endswith(".css"):
            assert b"url(" not in file.content, name
            assert b"@import" not in file.content, name


def test_changed_content_changes_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluicemq.admin import static_files

    before = load_static_files()
    contents = {name: file.content for name, file in before.files.items()}
    contents["app.js"] += b"\n"
    monkeypatch.setattr(static_files, "_read", lambda: contents)
    after: StaticFiles = static_files.load_static_files.__wrapped__()
    assert after.version != before.version


def test_first_page_loads_few_small_files() -> None:
    files = load_static_files().files
    sources = load_modules()
    first = {*static_imports("app.js", sources), *static_imports("pages/overview.js", sources)}
    first |= {name for name in files if name.endswith((".css", ".svg"))} | {"theme.js", INDEX}
    assert sum(len(files[name].packed) for name in first) < 60_000
    assert len(first) < 40
