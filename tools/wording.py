"""Check names and prose for words that the glossary of this project replaces.

    python tools/wording.py [PATH...]

Checks the given files, or all of the project. Each finding is one line, `path:line: "word": use
"term"`, and makes the exit status 1. `tools/wording.allow` lists exceptions, one per line, as
`PATH-GLOB WORD  # reason`, where `*` means every word; an exception that nothing needs is a
finding as well.

Three kinds of places are checked: parts of identifiers and file names against WORDS, comments,
strings and documentation against PHRASES, and the first word of docstrings against OPENERS.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, NamedTuple

WORDS: Final = {
    "burial": "dead_letter",
    "census": "connection_registry",
    "congest": "pause_delivery",
    "dialing": "transport",
    "dialogue": "request_channel",
    "disown": "delete_temporary",
    "doorkeeper": "tls_acceptor",
    "hasten": "quick_ack",
    "house": "fixture",
    "inforce": "effective",
    "lane": "pending_queue",
    "lanes": "pending_queues",
    "portrait": "session_info",
    "relieve": "resume_delivery",
    "rig": "fixture",
    "roster": "users",
    "visitor": "client",
}
"""Parts of identifiers, in lower case, and the term to use instead."""

PHRASES: Final = {
    r"\bhow-manieth\b": "index",
    r"\bat the door\b": "on accept",
    r"\bmoving in\b": "migration",
    r"\bthe way back\b": "downgrade, response",
    r"\bas usual\b": "by default",
    r"\bmakes no sense\b": "is invalid",
}
"""Regular expressions for prose, matched in any case, and the term to use instead."""

OPENERS: Final = frozenset({"Nobody", "Said", "Somebody", "Told", "Whoever"})
"""First words of a docstring that say nothing about what the function does."""

TEXT_SUFFIXES: Final = frozenset({".css", ".html", ".js", ".md", ".toml", ".yaml", ".yml"})
GENERATED: Final = frozenset({"build", "dist"})
"""Directories that are not checked without git, besides hidden ones."""
SELF: Final = "tools/wording.py"
ALLOW: Final = Path(__file__).with_name("wording.allow")
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`")
_PHRASES: Final = {re.compile(phrase, re.IGNORECASE): term for phrase, term in PHRASES.items()}


class Finding(NamedTuple):
    path: str
    line: int
    """From 1; 0 for the name of the file."""
    word: str
    advice: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.word}": {self.advice}'


class Allowed(NamedTuple):
    """An exception: a line of the allow file."""

    line: int
    pattern: str
    word: str

    def covers(self, finding: Finding) -> bool:
        return fnmatch(finding.path, self.pattern) and self.word in ("*", finding.word)


def check_file(path: str, text: str) -> Iterator[Finding]:
    """Yield the findings of one file. Source that Python cannot parse raises SyntaxError."""
    yield from _check_name(path, 0, path)
    if path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield from _check_name(path, token.start[0], token.string)
            elif token.type in (tokenize.COMMENT, tokenize.STRING):
                yield from _check_prose(path, token.start[0], token.string)
        yield from _check_docstrings(path, ast.parse(text))
        return
    if path.endswith(".js"):
        for number, line in enumerate(text.splitlines(), 1):
            for name in _NAME.findall(_QUOTED.sub("", line)):
                yield from _check_name(path, number, name)
    yield from _check_prose(path, 1, text)


def _check_name(path: str, line: int, name: str) -> Iterator[Finding]:
    for part in _PARTS.findall(name):
        if (term := WORDS.get(part.lower())) is not None:
            yield Finding(path, line, part.lower(), f'use "{term}"')


def _check_prose(path: str, first: int, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), first):
        for pattern, term in _PHRASES.items():
            for match in pattern.finditer(line):
                yield Finding(path, number, match[0].lower(), f'use "{term}"')


def _check_docstrings(path: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split(maxsplit=1)
            if words and (opener := words[0].rstrip(",:")) in OPENERS:
                yield Finding(path, node.lineno, opener, "begin with what the function does")


def read_exceptions(text: str) -> list[Allowed]:
    """Parse an allow file. Raises ValueError for a line without a reason."""
    exceptions = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        entry, _, reason = line.partition("  # ")
        pattern, _, word = entry.strip().partition(" ")
        if not word or not reason.strip():
            raise ValueError(f'line {number}: write "PATH-GLOB WORD  # reason"')
        exceptions.append(Allowed(number, pattern, word.strip()))
    return exceptions


def check(paths: list[str], exceptions: list[Allowed], *, complete: bool) -> list[str]:
    """Return the findings as lines. If `complete`, exceptions that nothing needs are findings."""
    lines, used = [], set()
    for path in paths:
        for finding in check_file(path, Path(path).read_text("utf-8")):
            covering = {entry for entry in exceptions if entry.covers(finding)}
            used |= covering
            if not covering:
                lines.append(str(finding))
    if complete:
        lines += [
            f"tools/wording.allow:{entry.line}: nothing needs this exception; remove it"
            for entry in exceptions
            if entry not in used
        ]
    return lines


def project_files() -> list[str]:
    """Return the tracked files below the working directory.

    Without git, which an unpacked archive does not have, these are all files outside of hidden and
    generated directories.
    """
    try:
        git = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True)
        if git.returncode == 0:
            return git.stdout.split("\0")
    except OSError:
        pass  # git is not installed
    return [
        str(path)
        for path in sorted(Path().rglob("*"))
        if not any(part.startswith(".") or part in GENERATED for part in path.parts)
    ]


def main(arguments: list[str]) -> int:
    paths = [
        path
        for path in arguments or project_files()
        if Path(path).suffix in TEXT_SUFFIXES | {".py"} and path != SELF and Path(path).is_file()
    ]
    try:
        exceptions = read_exceptions(ALLOW.read_text("utf-8")) if ALLOW.exists() else []
    except ValueError as error:
        print(f"tools/wording.allow, {error}", file=sys.stderr)
        return 2
    lines = check(paths, exceptions, complete=not arguments)
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
