"""An HTTP server with predefined responses."""

from __future__ import annotations

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


class StubServer:
    """An HTTP server on a Unix socket that records its `requests`.

    It sends `responses` in order and repeats the last; None closes the connection."""

    def __init__(self, path: Path) -> None:
        self.responses: list[tuple[int, bytes] | None] = [(200, b"{}")]
        self.requests: list[tuple[str, str, bytes]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                stub.requests.append((self.command, self.path, self.rfile.read(length)))
                response = stub.responses.pop(0) if len(stub.responses) > 1 else stub.responses[0]
                if response is None:
                    self.close_connection = True
                    return
                status, body = response
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

            def address_string(self) -> str:
                return "unix"

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self._server = Server(str(path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def paths(self) -> list[str]:
        """Return the request targets, paths with queries, in order."""
        return [path for _, path, _ in self.requests]


def problem(code: str, message: str) -> bytes:
    """Return the problem document of an error."""
    return json.dumps({"code": code, "detail": message}).encode()
