"""Find and launch the Chromium that the console tests and screenshots use.

`python -m tests.console.chromium` prints its path, or how to install it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
HOW = (
    "No Chromium found at $CHROMIUM or on the PATH as "
    f"{', '.join(NAMES)}. On Debian: sudo apt install chromium"
)


def find_chromium() -> Path | None:
    """Return the path in the variable CHROMIUM, or the first browser on the PATH."""
    for name in (os.environ.get("CHROMIUM", ""), *NAMES):
        if name and (path := shutil.which(name)):
            return Path(path)
    return None


@contextmanager
def launch_chromium(path: Path) -> Iterator[Browser]:
    """Run a headless browser."""
    # this module must be importable without playwright, to print how to get a browser
    from playwright.sync_api import sync_playwright

    # the sandbox needs privileges that root in a container does not have
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


if __name__ == "__main__":
    browser = find_chromium()
    print(browser or HOW)
    sys.exit(browser is None)
