"""Send messages in a JMS transaction, and receive those that a selector matches."""

import sys

from sluicemq.clients.blocking import connect
from sluicemq.clients.jmq.target import DEFAULT_PORT

QUEUE = "example-orders"


def main(port: int) -> None:
    with connect(f"jmq://127.0.0.1:{port}") as client:
        session = client.session(transacted=True)
        producer = session.producer(QUEUE)
        for city, count in (("Oslo", 2), ("Bergen", 1)):
            producer.send({"pizza": "margherita", "count": count}, properties={"city": city})
        session.commit()

        producer.send({"pizza": "never sent"}, properties={"city": "Oslo"})
        session.rollback()

        for city in ("Oslo", "Bergen"):
            with session.consumer(QUEUE, selector=f"city = '{city}'") as consumer:
                message = consumer.receive(timeout=30)
                print(city, message.body)
                session.commit()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_PORT)
