"""A sync that fails once. The kernel has forgotten the data by then and reports success from then
on, so a broker that tried again would confirm what is lost: it must stop instead."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path

from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ConnectionLost
from tests.faults.load import AHEAD, Letters, Load, drain, drain_letters
from tests.faults.plan import SMALL_SEGMENTS, machine, repeatable, size
from tests.faults.recorder import Recorder

LISTEN = ("phpmq://127.0.0.1:0", "msglite://127.0.0.1:0?durability=sync")
JOURNAL_FAILED = 74
REFUSED = 1
SYNCS_OF_A_START = 8
"""At the most; whoever fails one of these does not start."""


def test_a_sync_that_fails_once(tmp_path: Path) -> None:
    chance = repeatable()
    numbered, letters = Recorder(), Recorder()
    sound = LocalBroker(tmp_path, LISTEN, environment=SMALL_SEGMENTS)
    following = following_letter = 0
    failed = 0
    with ExitStack() as stack:
        stack.callback(sound.stop)
        for turn in range(size(5, 60)):
            number = int(2 ** chance.uniform(0, 9)) + (SYNCS_OF_A_START if turn % 4 else 0)
            broker = LocalBroker(
                tmp_path, LISTEN, environment=SMALL_SEGMENTS, program=machine(f"eio:{number}")
            )
            stack.callback(broker.stop)
            try:
                broker.start()
            except ConnectionLost:
                assert broker.wait() in (REFUSED, JOURNAL_FAILED)
                continue
            load, post = None, None
            with suppress(ConnectionLost):  # it may fail before they have all connected
                body, ahead = chance.choice((0, 100, 1000)), AHEAD[turn % 2]
                load = Load(broker.port("phpmq"), following, numbered, chance, body, ahead)
                post = Letters(broker.port("msglite"), following_letter, letters)
            assert broker.wait() == JOURNAL_FAILED
            failed += 1
            following = load.end() if load else following
            following_letter = post.end() if post else following_letter
        sound.start()
        drain(sound.port("phpmq"), numbered)
        drain_letters(sound.port("msglite"), letters)
        numbered.drained()
        letters.drained()
        assert failed
        assert sound.stop() == 0
        said = sound.log.read_text()
        assert os.strerror(5) in said
        assert "Traceback" not in said
