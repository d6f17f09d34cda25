"""Publish with JMS and consume with PHPMQ: the broker transcodes the message."""

import sys

from sluicemq.clients.blocking import connect
from sluicemq.clients.jmq.target import DEFAULT_PORT as JMQ_PORT
from sluicemq.clients.phpmq import DEFAULT_PORT as PHPMQ_PORT

QUEUE = "example-transcoding"


def main(jmq_port: int, phpmq_port: int) -> None:
    with connect(f"jmq://127.0.0.1:{jmq_port}") as publisher:
        publisher.session().producer(QUEUE).send("a JMS text message")
    with connect(f"phpmq://127.0.0.1:{phpmq_port}") as consumer:
        consumer.subscribe(QUEUE)
        message = consumer.receive(timeout=30)
        message.ack()
        print("received", message.body.decode())


if __name__ == "__main__":
    main(*(int(port) for port in sys.argv[1:3] or (JMQ_PORT, PHPMQ_PORT)))
