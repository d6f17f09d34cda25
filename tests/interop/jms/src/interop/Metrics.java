package interop;

import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;

/** Topics on which the broker itself publishes, mq.metrics.*. */
final class Metrics {
    private Metrics() {}

    private static MapMessage next(Session session, String name) throws Exception {
        MessageConsumer consumer = session.createConsumer(session.createTopic("mq.metrics." + name));
        Message message = consumer.receive(70_000);
        Check.that(message != null, "nothing was published within 70 s");
        Check.that(message instanceof MapMessage, "" + message.getClass());
        consumer.close();
        return (MapMessage) message;
    }

    @Case(seconds = 100, needs = "metrics")
    static void broker(Room room) throws Exception {
        MapMessage got = next(room.session(), "broker");
        Check.equal("mq.metrics.broker", got.getStringProperty("type"));
        Check.that(got.getLongProperty("timestamp") > 0, "no timestamp");
        Check.that(got.getStringProperty("brokerAddress") != null, "no brokerAddress");
        Check.that(got.getLong("numConnections") >= 1, "numConnections");
        for (String name :
                "numMsgsIn numMsgsOut numMsgs msgBytesIn msgBytesOut numPktsIn numPktsOut pktBytesIn pktBytesOut totalMsgBytes numDestinations"
                        .split(" ")) {
            Check.that(got.getObject(name) instanceof Long, name + " is " + got.getObject(name));
        }
    }

    @Case(seconds = 100, needs = "metrics")
    static void queue(Room room) throws Exception {
        Session session = room.session();
        Room.send(session, room.queue(session), "m", 7);
        MapMessage got = next(session, "destination.queue." + room.name(""));
        Check.equal("mq.metrics.destination.queue." + room.name(""), got.getStringProperty("type"));
        Check.equal(7L, got.getLong("numMsgs"));
        Check.equal(7L, got.getLong("numMsgsIn"));
        Check.equal(0L, got.getLong("numMsgsOut"));
    }

    @Case(seconds = 100, needs = "metrics")
    static void topic(Room room) throws Exception {
        Session session = room.session();
        session.createConsumer(room.topic(session));
        MapMessage got = next(session, "destination.topic." + room.name(""));
        Check.equal(1L, got.getLong("numConsumers"));
    }

    @Case(seconds = 100, needs = "metrics")
    static void machine(Room room) throws Exception {
        MapMessage got = next(room.session(), "jvm");
        Check.that(got.getLong("totalMemory") > 0, "totalMemory");
    }

    @Case(seconds = 100, needs = "metrics")
    static void destinationList(Room room) throws Exception {
        Session session = room.session();
        Room.send(session, room.queue(session), "x");
        MapMessage got = next(session, "destination_list");
        Check.that(got.getMapNames().hasMoreElements(), "the list is empty");
    }
}
