package interop;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.IllegalStateException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;

/** Transacted sessions. JMS 1.1, section 4.4.7. */
final class Transactions {
    private Transactions() {}

    private static Session transacted(Room room) throws Exception {
        return room.session(Session.SESSION_TRANSACTED);
    }

    @Case
    static void sentOnCommit(Room room) throws Exception {
        Session session = transacted(room);
        Session other = room.session();
        MessageConsumer consumer = other.createConsumer(room.queue(other));
        Room.send(session, room.queue(session), "m", 5);
        Room.nothing(consumer);
        session.commit();
        Check.equal(Room.numbered("m", 0, 5), Room.texts(consumer, 5));
    }

    @Case
    static void notSentOnRollback(Room room) throws Exception {
        Session session = transacted(room);
        Room.send(session, room.queue(session), "dropped");
        session.rollback();
        Room.send(session, room.queue(session), "kept");
        session.commit();
        Session other = room.session();
        MessageConsumer consumer = other.createConsumer(room.queue(other));
        Room.expect(consumer, "kept");
        Room.nothing(consumer);
    }

    @Case
    static void nonPersistentSentOnCommit(Room room) throws Exception {
        Session session = transacted(room);
        MessageProducer producer = session.createProducer(room.queue(session));
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        for (int i = 0; i < 10; i++) {
            producer.send(session.createTextMessage("m" + i));
        }
        Session other = room.session();
        MessageConsumer consumer = other.createConsumer(room.queue(other));
        Room.nothing(consumer);
        session.commit();
        Check.equal(Room.numbered("m", 0, 10), Room.texts(consumer, 10));
    }

    @Case
    static void receivedOnCommit(Room room) throws Exception {
        Room.send(room.session(), room.queue(room.session()), "m", 3);
        Session session = transacted(room);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.expect(consumer, "m0", "m1");
        session.commit();
        session.close();
        Session other = room.session();
        MessageConsumer next = other.createConsumer(room.queue(other));
        Room.expect(next, "m2");
        Room.nothing(next);
    }

    @Case
    static void givenAgainOnRollback(Room room) throws Exception {
        Room.send(room.session(), room.queue(room.session()), "m", 20);
        Session session = transacted(room);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(Room.numbered("m", 0, 8), Room.texts(consumer, 8));
        session.rollback();
        for (int i = 0; i < 20; i++) {
            TextMessage got = (TextMessage) Room.receive(consumer);
            Check.equal("m" + i, got.getText());
            Check.equal(i < 8, got.getJMSRedelivered());
            Check.equal(i < 8 ? 2 : 1, got.getIntProperty("JMSXDeliveryCount"));
        }
        session.commit();
        session.close();
        Session other = room.session();
        Room.nothing(other.createConsumer(room.queue(other)));
    }

    @Case
    static void rollbackCountsUp(Room room) throws Exception {
        Room.send(room.session(), room.queue(room.session()), "again");
        Session session = transacted(room);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int count = 1; count <= 5; count++) {
            Message got = Room.receive(consumer);
            Check.equal(count, got.getIntProperty("JMSXDeliveryCount"));
            session.rollback();
        }
    }

    /** What comes in and what goes out is one unit. */
    @Case
    static void movedTogether(Room room) throws Exception {
        Session session = transacted(room);
        Queue from = session.createQueue(room.name("from"));
        Queue to = session.createQueue(room.name("to"));
        Session other = room.session();
        Room.send(other, from, "m", 4);
        MessageConsumer watcher = other.createConsumer(to);
        MessageConsumer consumer = session.createConsumer(from);
        MessageProducer producer = session.createProducer(to);
        producer.send(Room.receive(consumer));
        producer.send(Room.receive(consumer));
        session.rollback();
        Room.nothing(watcher);
        for (int i = 0; i < 4; i++) {
            producer.send(Room.receive(consumer));
        }
        session.commit();
        Check.equal(Room.numbered("m", 0, 4), Room.texts(watcher, 4));
        Room.nothing(consumer);
    }

    @Case
    static void closeRollsBack(Room room) throws Exception {
        Room.send(room.session(), room.queue(room.session()), "m", 2);
        Connection connection = room.connection();
        Session session = connection.createSession(true, 0);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.expect(consumer, "m0");
        Room.send(session, session.createQueue(room.name("out")), "lost");
        connection.close();
        Session other = room.session();
        MessageConsumer next = other.createConsumer(room.queue(other));
        Message got = Room.receive(next);
        Check.equal("m0", ((TextMessage) got).getText());
        Check.equal(true, got.getJMSRedelivered());
        Room.expect(next, "m1");
        Room.nothing(other.createConsumer(other.createQueue(room.name("out"))));
    }

    @Case
    static void ofThousand(Room room) throws Exception {
        Session session = transacted(room);
        Room.send(session, room.queue(session), "m", 1000);
        session.commit();
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(Room.numbered("m", 0, 1000), Room.texts(consumer, 1000));
        session.rollback();
        Check.equal(Room.numbered("m", 0, 1000), Room.texts(consumer, 1000));
        session.commit();
        Room.nothing(consumer);
    }

    @Case
    static void toTopic(Room room) throws Exception {
        Session other = room.session();
        MessageConsumer one = other.createConsumer(room.topic(other));
        MessageConsumer two = other.createConsumer(room.topic(other));
        Session session = transacted(room);
        Room.send(session, room.topic(session), "dropped");
        session.rollback();
        Room.send(session, room.topic(session), "kept");
        Room.nothing(one);
        session.commit();
        Room.expect(one, "kept");
        Room.expect(two, "kept");
    }

    @Case
    static void fromTopic(Room room) throws Exception {
        Session session = transacted(room);
        MessageConsumer consumer = session.createConsumer(room.topic(session));
        Session other = room.session();
        Room.send(other, room.topic(other), "m", 5);
        Room.texts(consumer, 3);
        session.rollback();
        Check.equal(Room.numbered("m", 0, 5), Room.texts(consumer, 5));
        session.commit();
        Room.nothing(consumer);
    }

    @Case
    static void twoAtOnce(Room room) throws Exception {
        Connection connection = room.connection();
        Session first = connection.createSession(true, 0);
        Session second = connection.createSession(true, 0);
        Room.send(first, room.queue(first), "first");
        Room.send(second, room.queue(second), "second");
        first.rollback();
        second.commit();
        MessageConsumer consumer = first.createConsumer(room.queue(first));
        Room.expect(consumer, "second");
        first.commit();
        Room.nothing(consumer);
    }

    /** A consumer may be closed before the commit that covers what it received. */
    @Case
    static void consumerClosedBeforeCommit(Room room) throws Exception {
        Room.send(room.session(), room.queue(room.session()), "m", 4);
        Session session = transacted(room);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.expect(consumer, "m0", "m1");
        consumer.close();
        session.commit();
        MessageConsumer next = session.createConsumer(room.queue(session));
        Room.expect(next, "m2", "m3");
        session.commit();
        Room.nothing(next);
    }

    @Case
    static void browserSeesCommittedOnly(Room room) throws Exception {
        Session session = transacted(room);
        Room.send(session, room.queue(session), "open");
        Session other = room.session();
        QueueBrowser browser = other.createBrowser(room.queue(other));
        Check.that(!browser.getEnumeration().hasMoreElements(), "it sees what is not committed");
        session.commit();
        Check.that(browser.getEnumeration().hasMoreElements(), "it does not see what is committed");
    }

    @Case
    static void emptyCommitsAndRollbacks(Room room) throws Exception {
        Session session = transacted(room);
        for (int i = 0; i < 10; i++) {
            session.commit();
            session.rollback();
        }
        Check.equal(true, session.getTransacted());
        Session plain = room.session();
        Check.thrown(IllegalStateException.class, plain::commit);
        Check.thrown(IllegalStateException.class, plain::rollback);
        Check.thrown(IllegalStateException.class, session::recover);
    }
}
