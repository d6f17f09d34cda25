from __future__ import annotations

import pytest

from sluicemq.model.setting import TomlLines

TEXT = '''\
# idle_timeout = 1
note = """
[limits]
idle_timeout = 2
"""
[limits]
max_connections = 1  # not idle_timeout
"idle_timeout" = [
  3,
  4,
]

[[listeners]]
url = "a"
[[listeners]]
user = "u"
url = "b"
[destinations]
"topic:x" = { max_messages = 1 }
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("note",), 2),
        (("limits",), 6),
        (("limits", "max_connections"), 7),
        (("limits", "idle_timeout"), 8),
        (("listeners", 0), 13),
        (("listeners", 0, "url"), 14),
        (("listeners", 1), 15),
        (("listeners", 1, "url"), 17),
        (("destinations", "topic:x", "max_messages"), 19),
        (("limits", "nothing"), 0),
        (("listeners", 7), 0),
        ((), 0),
    ],
)
def test_line_of_setting(path: tuple[str | int, ...], line: int) -> None:
    assert TomlLines(TEXT).number(path) == line


def test_parsing_of_long_texts_is_bounded() -> None:
    text = "".join(f"[destinations.q{number}]\nmax_messages = 1\n" for number in range(20_000))
    assert TomlLines(text).number(("destinations", "q19999", "max_messages")) in (0, 40_000)
