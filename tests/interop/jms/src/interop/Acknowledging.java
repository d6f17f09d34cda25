package interop;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.List;

/** Modes of acknowledgement, and what happens to messages without. JMS 1.1, section 4.4.11. */
final class Acknowledging {
    private Acknowledging() {}

    /** Of Open MQ: the broker forgets what it has sent. */
    private static final int NO_ACKNOWLEDGE = com.sun.messaging.jms.Session.NO_ACKNOWLEDGE;

    private static void isEmpty(Room room, String queue) throws Exception {
        Session session = room.session();
        Room.nothing(session.createConsumer(session.createQueue(queue)));
    }

    @Case
    static void autoRemoves(Room room) throws Exception {
        Session session = room.session();
        Room.send(session, room.queue(session), "m", 20);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(Room.numbered("m", 0, 20), Room.texts(consumer, 20));
        session.close();
        isEmpty(room, room.name(""));
    }

    /** One call acknowledges all that the session was given. */
    @Case
    static void clientAcknowledgesAll(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 10);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.texts(consumer, 9);
        Room.receive(consumer).acknowledge();
        session.close();
        isEmpty(room, room.name(""));
    }

    @Case
    static void clientWithoutIsGivenAgain(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 5);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.texts(consumer, 2);
        session.close();
        Session next = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer again = next.createConsumer(room.queue(next));
        for (int i = 0; i < 5; i++) {
            TextMessage got = (TextMessage) Room.receive(again);
            Check.equal("m" + i, got.getText());
            Check.equal(i < 2, got.getJMSRedelivered());
            Check.equal(i < 2 ? 2 : 1, got.getIntProperty("JMSXDeliveryCount"));
        }
    }

    /** Open MQ's own method acknowledges one message only. */
    @Case
    static void clientAcknowledgesOne(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 3);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.receive(consumer);
        Message second = Room.receive(consumer);
        Room.receive(consumer);
        ((com.sun.messaging.jms.Message) second).acknowledgeThisMessage();
        session.recover();
        Room.expect(consumer, "m0", "m2");
    }

    @Case
    static void clientAcknowledgesUpToOne(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 4);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.receive(consumer);
        Message second = Room.receive(consumer);
        Room.receive(consumer);
        ((com.sun.messaging.jms.Message) second).acknowledgeUpThroughThisMessage();
        session.recover();
        Room.expect(consumer, "m2", "m3");
    }

    @Case
    static void dupsOkRemoves(Room room) throws Exception {
        Session session = room.session(Session.DUPS_OK_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 57);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(Room.numbered("m", 0, 57), Room.texts(consumer, 57));
        session.close();
        isEmpty(room, room.name(""));
    }

    /** What was sent to a consumer in this mode is gone, whether it was received or not. */
    @Case
    static void noAcknowledgeRemoves(Room room) throws Exception {
        Connection connection = room.connection();
        Session session =
                ((com.sun.messaging.jms.Connection) connection).createSession(NO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.send(room.session(), room.queue(session), "m", 30);
        Check.equal(Room.numbered("m", 0, 30), Room.texts(consumer, 30));
        connection.close();
        isEmpty(room, room.name(""));
    }

    @Case
    static void recoverGivesAgainInOrder(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 30);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(Room.numbered("m", 0, 10), Room.texts(consumer, 10));
        session.recover();
        for (int i = 0; i < 30; i++) {
            TextMessage got = (TextMessage) Room.receive(consumer);
            Check.equal("m" + i, got.getText());
            Check.equal(i < 10, got.getJMSRedelivered());
            Check.equal(i < 10 ? 2 : 1, got.getIntProperty("JMSXDeliveryCount"));
        }
    }

    @Case
    static void recoverAfterAcknowledge(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 6);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.receive(consumer);
        Room.receive(consumer).acknowledge();
        Room.receive(consumer);
        session.recover();
        Check.equal(Room.numbered("m", 2, 6), Room.texts(consumer, 4));
    }

    @Case
    static void recoverOnTopic(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(room.topic(session));
        Room.send(session, room.topic(session), "m", 10);
        Room.texts(consumer, 4);
        session.recover();
        Check.equal(Room.numbered("m", 0, 10), Room.texts(consumer, 10));
    }

    @Case
    static void recoverTwoConsumers(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Queue first = session.createQueue(room.name("first"));
        Queue second = session.createQueue(room.name("second"));
        Room.send(session, first, "a", 5);
        Room.send(session, second, "b", 5);
        MessageConsumer one = session.createConsumer(first);
        MessageConsumer two = session.createConsumer(second);
        Room.texts(one, 3);
        Room.texts(two, 2);
        session.recover();
        Check.equal(Room.numbered("b", 0, 5), Room.texts(two, 5));
        Check.equal(Room.numbered("a", 0, 5), Room.texts(one, 5));
    }

    /** What a consumer had only in its buffer goes to the next one, in order and unmarked. */
    @Case
    static void closedConsumerGivesBack(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.send(session, room.queue(session), "m", 50);
        Check.equal(Room.numbered("m", 0, 7), Room.texts(consumer, 7));
        consumer.close();
        MessageConsumer next = session.createConsumer(room.queue(session));
        for (int i = 7; i < 50; i++) {
            TextMessage got = (TextMessage) Room.receive(next);
            Check.equal("m" + i, got.getText());
            Check.equal(false, got.getJMSRedelivered());
            Check.equal(1, got.getIntProperty("JMSXDeliveryCount"));
        }
    }

    /** JMS 1.1, section 4.4.11: closing a consumer does not end what its messages wait for. */
    @Case
    static void acknowledgeAfterConsumerClosed(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 4);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.receive(consumer);
        Message second = Room.receive(consumer);
        consumer.close();
        second.acknowledge();
        session.close();
        Session next = room.session();
        MessageConsumer rest = next.createConsumer(room.queue(next));
        Room.expect(rest, "m2", "m3");
        Room.nothing(rest);
    }

    @Case
    static void closedConnectionGivesBack(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 8);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.texts(consumer, 3);
        connection.close();
        Session next = room.session();
        MessageConsumer again = next.createConsumer(room.queue(next));
        for (int i = 0; i < 8; i++) {
            TextMessage got = (TextMessage) Room.receive(again);
            Check.equal("m" + i, got.getText());
            Check.equal(i < 3, got.getJMSRedelivered());
        }
    }

    /** Messages keep their place among others that were sent meanwhile. */
    @Case
    static void givenBackBeforeNewer(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "old", 3);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.texts(consumer, 3);
        Session other = room.session();
        Room.send(other, room.queue(other), "new", 2);
        session.close();
        MessageConsumer next = other.createConsumer(room.queue(other));
        Room.expect(next, "old0", "old1", "old2", "new0", "new1");
    }

    /** Redelivery keeps to priorities. */
    @Case
    static void recoverKeepsPriorities(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(room.queue(session));
        for (int i = 0; i < 6; i++) {
            producer.send(session.createTextMessage("p" + i), DeliveryMode.PERSISTENT, i, 0);
        }
        List<String> order = List.of("p5", "p4", "p3", "p2", "p1", "p0");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(order, Room.texts(consumer, 6));
        session.recover();
        Check.equal(order, Room.texts(consumer, 6));
    }

    /** imqAckOnProduce: sends of non-persistent messages are answered too. */
    @Case
    static void acknowledgedProduction(Room room) throws Exception {
        Session session = room.session("imqAckOnProduce", "true", "imqAckOnAcknowledge", "true");
        MessageProducer producer = session.createProducer(room.queue(session));
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        for (int i = 0; i < 20; i++) {
            producer.send(session.createTextMessage("m" + i));
        }
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(Room.numbered("m", 0, 20), Room.texts(consumer, 20));
    }
}
