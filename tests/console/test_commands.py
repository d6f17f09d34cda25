"""The commands that empty pages show can be executed."""

from __future__ import annotations

import shlex

import pytest

from sluicemq.cli.main import main
from tests.support.console import REFRESH_MS, BrowserPage, ConsoleFixture, OpenPage


def commands(browser_page: BrowserPage) -> list[list[str]]:
    """Return the commands of the page as arguments, without the program name."""
    browser_page.page.locator(".command code").first.wait_for()
    command_lines = [
        shlex.split(text) for text in browser_page.page.locator(".command code").all_inner_texts()
    ]
    assert all(words[0] == "sluicemq" for words in command_lines), command_lines
    return [words[1:] for words in command_lines]


def test_commands_of_the_overview_send_and_receive(
    console: ConsoleFixture, open_page: OpenPage, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    browser_page = open_page(console)
    browser_page.open("", "No messages yet")
    send, receive = commands(browser_page)
    assert main(send) == 0
    browser_page.wait_for_text("orders")
    browser_page.page.get_by_text("No messages yet").wait_for(state="detached")
    assert main(receive) == 0
    assert capfdbinary.readouterr().out == b"hello\n"


def test_names_in_commands_are_quoted_for_the_shell(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    name = "a b'c$(touch x)/&;*?#"
    console.create("plain")
    console.request("PUT", "/destinations/queue/~?name_base64=" + "YSBiJ2MkKHRvdWNoIHgpLyY7Kj8j")
    browser_page = open_page(console, has_clock=True)
    browser_page.open("destinations", name)
    browser_page.page.get_by_role("link", name=name, exact=True).click()
    browser_page.wait_for_text("No ready messages")
    send, _ = commands(browser_page)
    assert main(send) == 0
    browser_page.page.clock.fast_forward(REFRESH_MS)
    browser_page.wait_for_text("1 to 1 of 1")


def test_command_of_the_dead_letter_page_creates_a_queue(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(console)
    browser_page.open("dead-letters", "There are no dead letters")
    (create,) = commands(browser_page)
    assert main(create) == 0
    settings = console.item("orders")["settings"]
    assert (settings["dead_letter"], settings["max_attempts"]) == (True, 5)


def test_command_of_the_journal_page_exists(
    console: ConsoleFixture, open_page: OpenPage, capsys: pytest.CaptureFixture[str]
) -> None:
    browser_page = open_page(console)
    browser_page.open("journal", "No retention slots")
    (run,) = commands(browser_page)
    assert main([*run[:2], "--help"]) == 0
    help_text = capsys.readouterr().out
    assert all(word in help_text for word in run if word.startswith("--"))
