"""The browser of these tests. `python -m tests.console.chromium` prints where it is, or how to get
it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
HOW = (
    "The console was not tested: there is no Chromium at $CHROMIUM or on the PATH as "
    f"{', '.join(NAMES)}. On Debian: sudo apt install chromium"
)


def find_chromium() -> Path | None:
    """That of the variable CHROMIUM, or of the PATH."""
    for name in (os.environ.get("CHROMIUM", ""), *NAMES):
        if name and (found := shutil.which(name)):
            return Path(found)
    return None


if __name__ == "__main__":
    browser = find_chromium()
    print(browser or HOW)
    sys.exit(browser is None)
