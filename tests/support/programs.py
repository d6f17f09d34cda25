"""External programs that some tests run: Chromium, PHP and Prometheus's promtool.

`python -m tests.support.programs` installs those that are missing, if the user is root on Debian or
Ubuntu, and otherwise prints how to install them. Without a program, the tests that run it are
skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from playwright.sync_api import Browser, sync_playwright

BIN: Final = Path(__file__).parents[2] / "build" / "bin"


class Program(NamedTuple):
    """A program: its commands, of which one is enough, and its package in Debian and Ubuntu."""

    name: str
    package: str
    commands: tuple[str, ...]

    def find(self) -> str | None:
        """Return the path of the program, or None."""
        search_path = f"{os.environ.get('PATH', '')}:{BIN}"
        paths = (shutil.which(command, path=search_path) for command in self.commands)
        return next(filter(None, paths), None)

    @property
    def install_hint(self) -> str:
        """Return instructions for installing the program."""
        return f"No {self.name} was found. On Debian or Ubuntu: sudo apt install {self.package}"

    def path_or_skip(self) -> str:
        """Return the path of the program. Without it, skip the test."""
        path = self.find()
        if path is None:
            pytest.skip(self.install_hint)
        return path


BROWSERS: Final = ("chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
CHROMIUM: Final = Program(
    "Chromium", "chromium", (os.environ.get("CHROMIUM", ""), "chromium", *BROWSERS)
)
PHP: Final = Program("PHP", "php-cli", ("php",))
PROMTOOL: Final = Program("promtool", "prometheus", ("promtool",))


@contextmanager
def launch_chromium() -> Iterator[Browser]:
    """Run a headless browser. Without Chromium, skip the test."""
    path = CHROMIUM.path_or_skip()
    # a page starts faster in a process that has run the scripts of another page
    arguments = ["--process-per-site"]
    if os.geteuid() == 0:
        # the sandbox needs rights that root in a container does not have
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


def _apt(*arguments: str, directory: Path | None = None) -> None:
    command = ["apt-get", "-qq", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, cwd=directory, env=environment, stdout=subprocess.DEVNULL)


def _extract_promtool() -> None:
    """Extract promtool from its package; installing the package would start a public server."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)  # only this user may write there, so not apt's own
        _apt("-o", "APT::Sandbox::User=root", "download", PROMTOOL.package, directory=path)
        for package in path.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, path], check=True)
            BIN.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path / "usr" / "bin" / "promtool", BIN)


def install() -> None:
    """Install the missing programs, or print the commands that install them."""
    programs = (CHROMIUM, PHP, PROMTOOL)
    missing = [program for program in programs if not program.find()]
    if missing and os.getuid() == 0 and shutil.which("apt-get"):
        _apt("update")
        if PROMTOOL in missing:
            _extract_promtool()
        if packages := [program.package for program in missing if program is not PROMTOOL]:
            _apt("install", "-y", *packages)
    for program in missing:
        if not program.find():
            print(program.install_hint)


if __name__ == "__main__":
    install()
