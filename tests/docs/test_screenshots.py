"""The images of the console page exist, and the script writes all of them."""

from __future__ import annotations

import re

from tools.screenshots import IMAGES, MAX_BYTES, PAGES, SIZE

PAGE = IMAGES.parent / "console.md"
PNG = b"\x89PNG\r\n\x1a\n"


def test_console_page_has_images_of_script() -> None:
    image_names = re.findall(r"!\[[^\]]+\]\(images/(console-[^)]+)\)", PAGE.read_text("utf-8"))
    assert image_names == [f"console-{name}.png" for name in PAGES]
    assert {path.name for path in IMAGES.glob("console-*")} == set(image_names)


def test_images_are_small_and_of_one_size() -> None:
    for name in PAGES:
        content = (IMAGES / f"console-{name}.png").read_bytes()
        assert content.startswith(PNG)
        assert len(content) <= MAX_BYTES
        size = int.from_bytes(content[16:20]), int.from_bytes(content[20:24])
        assert size == (SIZE["width"], SIZE["height"])
