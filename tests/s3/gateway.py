"""An S3 server on loopback for tests: Versity S3 Gateway, with a directory as its back end.

`python -m tests.s3.gateway` installs it into build/bin. It is a program in Go, so that needs a
version of Go: the one on the PATH, or Debian's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from tests.protocols.sockets import unused_port

PROGRAM: Final = Path(__file__).parents[2] / "build" / "bin" / "versitygw"
MODULE: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
ACCESS_KEY: Final = "test"
SECRET_KEY: Final = "test-secret"
_TIMEOUT_SECONDS: Final = 60.0


class Gateway:
    """The server, with one bucket."""

    def __init__(self, directory: Path, bucket: str) -> None:
        (directory / bucket).mkdir(parents=True)
        metadata = directory.parent / "metadata"  # with the ETags, which clients rely on
        metadata.mkdir()
        port = unused_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        command = [str(PROGRAM), "--port", f"127.0.0.1:{port}", "--access", ACCESS_KEY]
        command += ["--secret", SECRET_KEY, "posix", "--sidecar", str(metadata), str(directory)]
        log = directory.parent / "gateway.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._answers():
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(_TIMEOUT_SECONDS)

    def _answers(self) -> bool:
        try:
            urlopen(self.endpoint, timeout=1)
        except URLError as error:
            return hasattr(error, "code")  # it refuses a request without a signature
        return True


def install() -> None:
    """Build the server if it is missing. Exit with an explanation if that is not possible."""
    if PROGRAM.is_file():
        return
    if shutil.which("go") is None and os.getuid() == 0 and shutil.which("apt-get"):
        for arguments in (["update"], ["install", "-y", "golang-go"]):
            subprocess.run(["apt-get", "-qq", *arguments], stdout=subprocess.DEVNULL)
    if shutil.which("go") is None:
        sys.exit("The tests with S3 need Go. On Debian 13 or Ubuntu: sudo apt install golang-go")
    environment = {**os.environ, "GOBIN": str(PROGRAM.parent)}
    if subprocess.run(["go", "install", MODULE], env=environment).returncode:
        sys.exit(f"go install {MODULE} failed: is the proxy of Go modules reachable?")


if __name__ == "__main__":
    install()
