from __future__ import annotations

import json
import time

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from tests.cli.conftest import Run, RunningBroker


def create_dead_letters(run_as_owner: Run, broker: RunningBroker, name: str, count: int) -> None:
    """Create dead letters: messages that were delivered once and requeued."""
    run_as_owner("queues", "create", name, "dead_letter=true", "max_attempts=1")
    run_as_owner("messages", "publish", name, *(f"letter {number}" for number in range(count)))
    client = BlockingClient(PhpmqClient.connect, path=broker.phpmq.partition("://")[2])
    client.subscribe(name, count)
    for _ in range(count):
        client.receive(10)
    client.close()
    deadline = time.monotonic() + 30
    while (
        dead_letters(run_as_owner, name) < count
    ):  # the broker processes the end of the connection later
        assert time.monotonic() < deadline
        time.sleep(0.01)


def dead_letters(run_as_owner: Run, name: str) -> int:
    queues = json.loads(run_as_owner("dlq", f"{name}.dlq", "--json").out)
    # "ready" includes messages that are not on disk yet, which have no reason
    return sum(sum(queue["reasons"].values()) for queue in queues)


def ready_count(run_as_owner: Run, name: str) -> int:
    queue = json.loads(run_as_owner("queues", "show", name, "--json").out)
    return int(queue["ready"])


def test_dead_letters_are_listed_and_redriven(run_as_owner: Run, broker: RunningBroker) -> None:
    create_dead_letters(run_as_owner, broker, "mortal", 3)
    (queue,) = json.loads(run_as_owner("dlq", "mortal*", "--json").out)
    assert (queue["name"], queue["ready"]) == ("mortal.dlq", 3)
    assert sum(queue["reasons"].values()) == 3
    (reason,) = queue["reasons"]
    assert reason in run_as_owner("dlq").out
    messages = json.loads(run_as_owner("dlq", "show", "mortal.dlq", "--json").out)["items"]
    origins = [message["dead_letter"]["original_destination"]["name"] for message in messages]
    assert origins == ["mortal"] * 3
    output = run_as_owner("dlq", "show", "mortal.dlq").out
    assert reason in output
    assert "mortal" in output.splitlines()[1]
    result = run_as_owner("dlq", "redrive", "mortal.dlq", messages[0]["id"])
    assert result.code == 0
    assert (ready_count(run_as_owner, "mortal"), ready_count(run_as_owner, "mortal.dlq")) == (1, 2)
    arguments = [messages[1]["id"], "--to", "other"]
    assert run_as_owner("dlq", "redrive", "mortal.dlq", *arguments).code == 0
    (redriven,) = json.loads(run_as_owner("messages", "list", "other", "--json").out)["items"]
    assert redriven["dead_letter"] is None
    assert run_as_owner("dlq", "redrive", "mortal.dlq", "--all", "--yes").code == 0
    assert (ready_count(run_as_owner, "mortal"), ready_count(run_as_owner, "mortal.dlq")) == (2, 0)
    shown_message = run_as_owner("messages", "show", "mortal", messages[0]["id"])
    assert "dead letter" not in shown_message.out


def test_dead_letters_are_purged(run_as_owner: Run, broker: RunningBroker) -> None:
    create_dead_letters(run_as_owner, broker, "lost", 2)
    purged = run_as_owner("dlq", "purge", "lost.dlq", "--yes", "--json")
    assert json.loads(purged.out)["purged"] == 2
    assert ready_count(run_as_owner, "lost.dlq") == 0


def test_redrive_of_an_ordinary_message_is_rejected(run_as_owner: Run) -> None:
    number = run_as_owner("messages", "publish", "alive", "x").out.strip()
    result = run_as_owner("dlq", "redrive", "alive", number)
    assert result.code == 1
    assert "name a destination with --to" in result.err
    assert ready_count(run_as_owner, "alive") == 1
