from __future__ import annotations

import json
import time

from sluicemq.protocols.phpmq.client import BlockingPhpmqClient
from tests.cli.conftest import Run, RunningBroker


def die(ask: Run, broker: RunningBroker, name: str, count: int) -> None:
    """Messages that no consumer could take: each was delivered once, and given back."""
    ask("queues", "create", name, "dead_letter=true", "max_attempts=1")
    ask("messages", "publish", name, *(f"letter {number}" for number in range(count)))
    client = BlockingPhpmqClient.connect(path=broker.phpmq.partition("://")[2])
    client.subscribe(name, count)
    for _ in range(count):
        client.receive(10)
    client.close()
    deadline = time.monotonic() + 30
    while dead_letters(ask, name) < count:  # the broker sees the end of the connection later
        assert time.monotonic() < deadline
        time.sleep(0.01)


def dead_letters(ask: Run, name: str) -> int:
    queues = json.loads(ask("dlq", f"{name}.dlq", "--json").out)
    return sum(int(queue["ready"]) for queue in queues)


def waiting(ask: Run, name: str) -> int:
    found = json.loads(ask("queues", "show", name, "--json").out)
    return int(found["ready"])


def test_dead_letters_are_listed_and_sent_back(ask: Run, broker: RunningBroker) -> None:
    die(ask, broker, "mortal", 3)
    (queue,) = json.loads(ask("dlq", "mortal*", "--json").out)
    assert (queue["name"], queue["ready"]) == ("mortal.dlq", 3)
    assert sum(queue["reasons"].values()) == 3
    (reason,) = queue["reasons"]
    assert reason in ask("dlq").out
    letters = json.loads(ask("dlq", "show", "mortal.dlq", "--json").out)["items"]
    assert len(letters) == 3
    shown = ask("dlq", "show", "mortal.dlq").out
    assert reason in shown
    assert "mortal" in shown.splitlines()[1]
    one = ask("dlq", "redrive", "mortal.dlq", letters[0]["id"])
    assert one.code == 0
    assert (waiting(ask, "mortal"), waiting(ask, "mortal.dlq")) == (1, 2)
    elsewhere = [letters[1]["id"], "--to", "hospital"]
    assert ask("dlq", "redrive", "mortal.dlq", *elsewhere).code == 0
    assert waiting(ask, "hospital") == 1
    assert ask("dlq", "redrive", "mortal.dlq", "--all", "--yes").code == 0
    assert (waiting(ask, "mortal"), waiting(ask, "mortal.dlq")) == (2, 0)
    detail = ask("messages", "show", "mortal", letters[0]["id"])
    assert "dead letter" not in detail.out


def test_dead_letters_are_thrown_away(ask: Run, broker: RunningBroker) -> None:
    die(ask, broker, "lost", 2)
    purged = ask("dlq", "purge", "lost.dlq", "--yes", "--json")
    assert json.loads(purged.out)["purged"] == 2
    assert waiting(ask, "lost.dlq") == 0


def test_what_is_no_dead_letter_stays(ask: Run) -> None:
    number = ask("messages", "publish", "alive", "x").out.strip()
    result = ask("dlq", "redrive", "alive", number)
    assert result.code == 1
    assert "name a destination with --to" in result.err
    assert waiting(ask, "alive") == 1
