"""docs/decisions/0001-public-names.md lists every public name, and none that no longer exists.

A section has a table of names with a new name or a reason, and below it the names that stay.
`WRITE=1` writes missing names below the tables, as names that stay, and removes obsolete rows.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path
from typing import Final, NamedTuple

from tests.docs.public_names import SECTIONS_OF_PAGE, Uses

PAGE: Final = Path(__file__).parents[2] / "docs" / "decisions" / "0001-public-names.md"
STAYS: Final = "stays"
UNCHANGED: Final = "Unchanged: "
_ROW: Final = re.compile(r"\| `(.+?)` \| (?:`(.+?)`|stays) \| (.*?) \|")
_WIDTH: Final = 118
_BLANK: Final = "\0"
"""Stands for a blank in a name while lines are wrapped."""


class Row(NamedTuple):
    """A row of a table; `new` is "stays" or the new name."""

    name: str
    new: str
    reason: str

    @property
    def line(self) -> str:
        """Return the row in Markdown."""
        new = STAYS if self.new == STAYS else f"`{self.new}`"
        return f"| `{self.name}` | {new} | {self.reason} |"


class Section(NamedTuple):
    """The content of the page under one heading."""

    rows: list[Row]
    unchanged: list[str]

    @property
    def names(self) -> set[str]:
        """Return the names that are listed, those of rows as they are today."""
        return {row.name for row in self.rows} | set(self.unchanged)


def parse(text: str) -> Section:
    """Read the text below a heading."""
    rows = [Row(name, new or STAYS, reason) for name, new, reason in _ROW.findall(text)]
    _, _, names = text.partition(UNCHANGED)
    return Section(rows, re.findall(r"`(.+?)`", names.replace("\n", " ")))


def current(section: Section, uses: Uses) -> Section:
    """Return the section as it must be for these names.

    A row counts for its old and its new name, whichever the code has. If all uses of a name have
    rows of their own, the name needs none.
    """
    known_names = {*uses, *(use for use_list in uses.values() for use in use_list)}
    rows = [row for row in section.rows if row.name in known_names or row.new in known_names]
    old_names = {row.name for row in rows}
    new_names = {row.new for row in rows}
    unchanged_names = [
        name
        for name, name_uses in uses.items()
        if name not in old_names
        and (name not in new_names or name in section.unchanged)
        and not (name_uses and old_names.issuperset(name_uses))
    ]
    return Section(rows, unchanged_names)


def render(section: Section) -> str:
    """Return the section in Markdown."""
    parts = []
    if section.rows:
        head = "| before | new | reason |\n|---|---|---|\n"
        parts.append(head + "".join(f"{row.line}\n" for row in section.rows))
    if section.unchanged:
        names = ", ".join(f"`{name.replace(' ', _BLANK)}`" for name in section.unchanged)
        lines = textwrap.wrap(
            UNCHANGED + names, _WIDTH, break_long_words=False, break_on_hyphens=False
        )
        parts.append("\n".join(lines).replace(_BLANK, " ") + "\n")
    return "\n".join(parts)


def test_page_has_every_public_name() -> None:
    introduction, *parts = re.split(r"^### ", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    sections = {}
    for part in parts:
        heading, _, text = part.partition("\n")
        sections[heading] = parse(text)
    assert list(sections) == list(SECTIONS_OF_PAGE)
    expected = {
        heading: current(sections[heading], collect())
        for heading, collect in SECTIONS_OF_PAGE.items()
    }
    if os.environ.get("WRITE"):
        pages = (f"### {heading}\n\n{render(section)}" for heading, section in expected.items())
        PAGE.write_text(introduction + "\n".join(pages), "utf-8")
        return
    differences = [
        f"{heading}: {name} is {'missing' if name in expected[heading].names else 'obsolete'}"
        for heading, section in sections.items()
        for name in sorted(section.names ^ expected[heading].names)
    ]
    assert not differences, "\n".join(differences)


def test_row_counts_for_its_old_and_its_new_name() -> None:
    section = Section([Row("waiting", "ready", "RabbitMQ"), Row("gone", "lost", "")], ["queue"])
    rows = section.rows[:1]
    assert current(section, {"waiting": [], "queue": []}) == Section(rows, ["queue"])
    assert current(section, {"ready": [], "queue": [], "topic": []}) == Section(
        rows, ["queue", "topic"]
    )


def test_name_needs_no_row_if_all_of_its_uses_have_rows() -> None:
    section = Section([Row("Connection.since", "started", ""), Row("Message.since", STAYS, "")], [])
    assert current(section, {"since": ["Connection.since", "Message.since"]}) == section
    uses = {"since": ["Connection.since", "Message.since", "Slot.since"]}
    assert current(section, uses).unchanged == ["since"]


def test_section_is_read_as_it_is_written() -> None:
    section = Section([Row("In/s", "Publish rate", "RabbitMQ")], ["Dead letters", "Name"])
    assert parse(render(section)) == section
