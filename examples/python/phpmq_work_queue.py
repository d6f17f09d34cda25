"""Process the jobs of a PHPMQ queue: acknowledge, requeue or dead-letter each of them."""

import sys

from sluicemq.clients.blocking import connect
from sluicemq.clients.phpmq import DEFAULT_PORT

QUEUE = "example-jobs"


def main(port: int) -> None:
    with connect(f"phpmq://127.0.0.1:{port}") as publisher:
        for body in (b"resize 1.png", b"resize 2.png", b"damaged"):
            publisher.send(QUEUE, body)
        publisher.confirm()

    with connect(f"phpmq://127.0.0.1:{port}") as worker:
        worker.subscribe(QUEUE, window=10)
        requeued = False
        for _ in range(4):
            message = worker.receive(timeout=30)
            if message.body == b"damaged":
                message.dead_letter()
                print("dead-lettered", message.body.decode())
            elif not requeued:
                message.requeue()
                requeued = True
                print("requeued", message.body.decode())
            else:
                message.ack()
                print("processed", message.body.decode())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_PORT)
