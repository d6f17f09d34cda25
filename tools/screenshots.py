"""Take the screenshots of `docs/console.md`.

    python -m tools.screenshots

Starts a broker on free loopback ports, publishes and consumes messages for some seconds, and
writes `docs/images/console-*.png`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.console import ConsoleFixture, open_console, open_context
from tests.support.programs import CHROMIUM, launch_chromium

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
PAGES: Final = {
    "overview": ("", "payments"),
    "destination": ("queue/payments/charts", "Backlog"),
    "messages": ("queue/orders", "hello"),
    "dead-letters": ("dead-letters", "expired"),
}
"""By the name of the image, the address of the page and a text to wait for."""
SIZE: Final = {"width": 1280, "height": 800}
MAX_BYTES: Final = 150_000
TRAFFIC_SECONDS: Final = 40.0
PAUSE_SECONDS: Final = 0.02
SETTLE_MS: Final = 3_000
"""Time until charts and lists have been drawn."""


def generate_traffic(console: ConsoleFixture, seconds: float) -> None:
    """Publish to the queue `payments` and consume a little slower than that."""
    client = console.phpmq()
    client.subscribe("payments", 20)
    deadline = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline:
        number += 1
        client.send("payments", b'{"order": %d, "amount": "12.50"}' % number)
        if number % 4:
            client.receive(10).ack()
        time.sleep(PAUSE_SECONDS)


def take_screenshots(directory: Path, traffic_seconds: float = TRAFFIC_SECONDS) -> list[Path]:
    """Write the images to a directory and return their paths. Raises if there is no browser."""
    if CHROMIUM.find() is None:
        raise FileNotFoundError(CHROMIUM.install_hint)
    paths = []
    with (
        tempfile.TemporaryDirectory() as data,
        ConsoleFixture(Path(data)) as console,
        launch_chromium() as browser,
    ):
        console.create_sample_data()
        generate_traffic(console, traffic_seconds)
        for name, (address, text) in PAGES.items():
            with (
                open_context(browser, viewport=SIZE, color_scheme="light") as context,
                open_console(context, console) as browser_page,
            ):
                page = browser_page.open(address, text)
                page.wait_for_timeout(SETTLE_MS)
                path = directory / f"console-{name}.png"
                page.screenshot(path=path)
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"{path.name} is larger than {MAX_BYTES} bytes")
            paths.append(path)
    return paths


def main() -> int:
    """Write the images of the documentation."""
    try:
        paths = take_screenshots(IMAGES)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    for path in paths:
        print(f"{path.relative_to(IMAGES.parents[1])}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
