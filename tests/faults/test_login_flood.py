"""Clients that guess passwords in a loop, over every protocol with logins: other clients of the
same and of another address can log in meanwhile, and messages are delivered."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from itertools import count, product
from pathlib import Path
from typing import Final

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.vibemq import VibeMQClient, commands
from sluicemq.model.access import Operation, Permission
from sluicemq.protocols.jmq.packets import Status
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Decoder
from sluicemq.security import records
from sluicemq.security.passwords import hash_password
from sluicemq.security.records import UserRecord, UserStore, make_token
from tests.faults.plan import size
from tests.protocols.jmq.raw import RawJmq, basic, status_of

DURATION_SECONDS: Final = size(2.0, 20.0)
GUESSERS: Final = 2
"""Guessing clients of each protocol."""
LEAST_GUESSES: Final = 20
"""Wrong passwords before the first logins, twice `auth.max_login_failures`."""
ROUNDS: Final = size(1, 5)
"""First logins of each protocol."""
ATTACKER_ADDRESS: Final = "127.0.0.2"
OTHER_ADDRESS: Final = "127.0.0.3"
TIMEOUT_SECONDS: Final = 60.0
"""Time limit for a response, well above the expected time."""
PASSWORD: Final = "correct horse battery"
PROTOCOLS: Final = ("vibemq", "jmq", "http")
GUESSED_USERS: Final = [f"guessed-{protocol}-{n}" for protocol in PROTOCOLS for n in range(ROUNDS)]
"""Users who log in for the first time from another address than the guessers."""
UNKNOWN_USERS: Final = [f"unknown-{protocol}-{n}" for protocol in PROTOCOLS for n in range(ROUNDS)]
"""Users who log in for the first time from the address of the guessers, who do not know them."""
FIRST_LOGINS: Final = {OTHER_ADDRESS: GUESSED_USERS, ATTACKER_ADDRESS: UNKNOWN_USERS}
USERS: Final = ("publisher", "verified", "holder", *GUESSED_USERS)
LISTEN: Final = (
    "vibemq://127.0.0.1:0",
    "jmq://127.0.0.1:0?services=jms&authentication=basic",
    "http://127.0.0.1:0",
)


def login_vibemq(port: int, source: str, user: str, secret: str) -> bool:
    """Log in on a new connection from the address `source`; without a user `secret` is a token.

    Return whether the login succeeds, like the other functions.
    """
    token = "" if user else secret
    frame = commands.connect("c", user, secret if user else "", token, [])
    decoder = Decoder()
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS, (source, 0)) as connection:
        connection.sendall(wire.encode(frame))
        frames: list[wire.Frame] = []
        while not frames:
            data = connection.recv(1 << 16)
            assert data, "the broker has closed the connection without a response"
            frames = decoder.feed(data)
    if frames[0].type == wire.ERROR:
        assert frames[0].error_message
        return False
    return True


def login_jmq(port: int, source: str, user: str, secret: str) -> bool:
    with RawJmq(port, source=source) as client:
        client.hello()
        status = status_of(client.authenticate(basic(user, secret)))
    assert status in (Status.OK, Status.INVALID_LOGIN, Status.FORBIDDEN)
    return status == Status.OK


def login_http(port: int, source: str, user: str, secret: str) -> bool:
    encoded = base64.b64encode(f"{user}:{secret}".encode()).decode()
    authorization = f"Basic {encoded}" if user else f"Bearer {secret}"
    connection = HTTPConnection("127.0.0.1", port, TIMEOUT_SECONDS, (source, 0))
    try:
        connection.request("GET", "/api/v1/status", headers={"Authorization": authorization})
        status = connection.getresponse().status
    finally:
        connection.close()
    assert status in (200, 401, 429)
    return status == 200


Login = Callable[[int, str, str, str], bool]
LOGINS: Final[dict[str, Login]] = {
    "vibemq": login_vibemq,
    "jmq": login_jmq,
    "http": login_http,
}


class RepeatingThread(threading.Thread):
    """Calls `action` with ascending numbers until it is stopped; `number` counts the calls."""

    def __init__(self, action: Callable[[int], None]) -> None:
        super().__init__()
        self.number = 0
        self.error: BaseException | None = None
        self.stopped = threading.Event()
        self._action = action

    def run(self) -> None:
        try:
            for self.number in count():
                if self.stopped.is_set():
                    return
                self._action(self.number)
        except BaseException as error:
            self.error = error


@contextmanager
def run_repeatedly(*actions: Callable[[int], None]) -> Iterator[list[RepeatingThread]]:
    """Run threads in the context; raise an exception of a thread at its end."""
    threads = [RepeatingThread(action) for action in actions]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for thread in threads:
            thread.stopped.set()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
    for thread in threads:
        assert not thread.is_alive()
        if thread.error is not None:
            raise thread.error


@pytest.fixture
def token(tmp_path: Path) -> str:
    """Add the users and return the token of `holder`."""
    token, record = make_token("", 1)
    hashed = hash_password(PASSWORD)
    permissions = (Permission("*", frozenset(Operation)),)
    store = UserStore(tmp_path / "users.json")
    for name in (*USERS, *UNKNOWN_USERS):
        user = UserRecord(password=hashed, permissions=permissions, created=1, updated=1)
        store.change(partial(records.add_user, name=name, user=user), "the tests")
    store.change(lambda database: records.add_token(database, "holder", record, 1), "the tests")
    return token


def test_password_guessing_does_not_block_valid_logins(tmp_path: Path, token: str) -> None:
    logins: Counter[str] = Counter()
    wrong_passwords = count(1)
    guess_event = threading.Event()
    with LocalBroker(tmp_path, LISTEN) as broker:
        ports = {protocol: broker.port(protocol) for protocol in PROTOCOLS}

        def guess(protocol: str, guesser: int, number: int) -> None:
            user = (*USERS, f"invented-{number}")[number % (len(USERS) + 1)]
            wrong_password = f"guess {guesser} {number}"
            assert not LOGINS[protocol](ports[protocol], ATTACKER_ADDRESS, user, wrong_password)
            if next(wrong_passwords) == LEAST_GUESSES:
                guess_event.set()

        def publish_and_receive(number: int) -> None:
            publisher.publish("delivered", number)
            message = subscription.receive(TIMEOUT_SECONDS)
            message.ack()

        guesses = [
            partial(guess, protocol, guesser)
            for protocol in PROTOCOLS
            for guesser in range(GUESSERS)
        ]
        with BlockingClient(
            VibeMQClient.connect,
            port=ports["vibemq"],
            username="publisher",
            password=PASSWORD,
            timeout=TIMEOUT_SECONDS,
        ) as publisher:
            subscription = publisher.subscribe("delivered")
            for protocol, source in product(PROTOCOLS, FIRST_LOGINS):
                assert LOGINS[protocol](ports[protocol], source, "verified", PASSWORD)
            with run_repeatedly(publish_and_receive, *guesses) as (publishing, *guessing):
                assert guess_event.wait(TIMEOUT_SECONDS)
                end = time.monotonic() + DURATION_SECONDS
                first_users = {source: iter(users) for source, users in FIRST_LOGINS.items()}
                published = publishing.number
                while time.monotonic() < end or logins["first"] < len(
                    GUESSED_USERS + UNKNOWN_USERS
                ):
                    for protocol, source in product(PROTOCOLS, FIRST_LOGINS):
                        login = partial(LOGINS[protocol], ports[protocol], source)
                        assert login("verified", PASSWORD)
                        assert login("" if protocol != "jmq" else "holder", token)
                        if (user := next(first_users[source], None)) is not None:
                            assert login(user, PASSWORD), f"the first login of {user} failed"
                            logins["first"] += 1
                        logins[protocol] += 2
                assert publishing.number > published, "no message was delivered"
                published = publishing.number - published
            guess_counts = [guesser.number for guesser in guessing]
    print(f"{dict(logins)} logins, {published} messages, {sum(guess_counts)} guesses")
    assert "Traceback" not in broker.log.read_text()
