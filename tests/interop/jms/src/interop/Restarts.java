package interop;

import com.sun.messaging.jms.notification.ConnectionClosedEvent;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.XAConnection;
import jakarta.jms.XASession;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import javax.transaction.xa.XAResource;

/** The broker is killed, with SIGKILL, and started again at the same address. */
final class Restarts {
    private Restarts() {}

    private static void restart() throws Exception {
        Runner.ask("RESTART");
    }

    /** Restarts the broker, and drops the connections to it. */
    private static void restart(Room room) throws Exception {
        restart();
        room.closeInBackground();
    }

    @Case(alone = true, needs = "restarts")
    static void persistentSurvive(Room room) throws Exception {
        Session session = room.session();
        Queue queue = room.queue(session);
        MessageProducer producer = session.createProducer(queue);
        for (int i = 0; i < 50; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setIntProperty("n", i);
            message.setJMSCorrelationID("c" + i);
            producer.send(message, DeliveryMode.PERSISTENT, 4, 0);
        }
        restart(room);
        Session again = room.session();
        MessageConsumer consumer = again.createConsumer(queue);
        for (int i = 0; i < 50; i++) {
            TextMessage got = (TextMessage) Room.receive(consumer);
            Check.equal("m" + i, got.getText());
            Check.equal(i, got.getIntProperty("n"));
            Check.equal("c" + i, got.getJMSCorrelationID());
            Check.equal(DeliveryMode.PERSISTENT, got.getJMSDeliveryMode());
        }
        Room.nothing(consumer);
    }

    @Case(alone = true, needs = "restarts")
    static void acknowledgedStayAway(Room room) throws Exception {
        Session session = room.session();
        Queue queue = room.queue(session);
        Room.send(session, queue, "m", 20);
        MessageConsumer consumer = session.createConsumer(queue);
        Room.texts(consumer, 12);
        restart(room);
        Session again = room.session();
        MessageConsumer rest = again.createConsumer(queue);
        Check.equal(Room.numbered("m", 12, 20), Room.texts(rest, 8));
        Room.nothing(rest);
    }

    @Case(alone = true, needs = "restarts")
    static void unacknowledgedComeAgain(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Queue queue = room.queue(session);
        Room.send(session, queue, "m", 3);
        Room.receive(session.createConsumer(queue));
        restart(room);
        Session again = room.session();
        Room.expect(again.createConsumer(queue), "m0", "m1", "m2");
    }

    /** After a broker has ended in order, they are known to have been delivered before. */
    @Case(alone = true, needs = "restarts")
    static void unacknowledgedAreMarked(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Queue queue = room.queue(session);
        Room.send(session, queue, "m", 3);
        Room.receive(session.createConsumer(queue));
        Runner.ask("STOP");
        Session again = room.session();
        MessageConsumer consumer = again.createConsumer(queue);
        Message first = Room.receive(consumer);
        Check.equal("m0", ((TextMessage) first).getText());
        Check.equal(true, first.getJMSRedelivered());
        Room.expect(consumer, "m1", "m2");
    }

    @Case(alone = true, needs = "restarts")
    static void durableSurvives(Room room) throws Exception {
        String client = room.name("client");
        Connection connection = room.named(client);
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        session.createDurableSubscriber(room.topic(session), "durable", "n > 1", false).close();
        MessageProducer producer = session.createProducer(room.topic(session));
        for (int i = 0; i < 4; i++) {
            TextMessage message = session.createTextMessage("before" + i);
            message.setIntProperty("n", i);
            producer.send(message);
        }
        restart(room);
        Session sender = room.session();
        producer = sender.createProducer(room.topic(sender));
        for (int i = 0; i < 4; i++) {
            TextMessage message = sender.createTextMessage("after" + i);
            message.setIntProperty("n", i);
            producer.send(message);
        }
        Session again = room.named(client).createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer =
                again.createDurableSubscriber(room.topic(again), "durable", "n > 1", false);
        Room.expect(consumer, "before2", "before3", "after2", "after3");
        Room.nothing(consumer);
        consumer.close();
        again.unsubscribe("durable");
    }

    @Case(alone = true, needs = "restarts")
    static void sharedDurableSurvives(Room room) throws Exception {
        Session session = room.session();
        String name = room.name("s");
        session.createSharedDurableConsumer(room.topic(session), name).close();
        Room.send(session, room.topic(session), "m", 3);
        restart(room);
        Session again = room.session();
        MessageConsumer consumer = again.createSharedDurableConsumer(room.topic(again), name);
        Room.expect(consumer, "m0", "m1", "m2");
        consumer.close();
        again.unsubscribe(name);
    }

    @Case(alone = true, needs = "restarts")
    static void preparedSurvives(Room room) throws Exception {
        Session plain = room.session();
        Queue in = plain.createQueue(room.name("in"));
        Queue out = plain.createQueue(room.name("out"));
        Room.send(plain, in, "in", 2);
        XAConnection connection = room.keep(room.distributed().createXAConnection());
        connection.start();
        XASession session = connection.createXASession();
        XAResource resource = session.getXAResource();
        MessageConsumer consumer = session.createConsumer(in);
        Distributed.Branch commit = new Distributed.Branch(room.name(""), "commit");
        Distributed.Branch rollback = new Distributed.Branch(room.name(""), "rollback");
        Distributed.Branch open = new Distributed.Branch(room.name(""), "open");
        for (Distributed.Branch branch : new Distributed.Branch[] {commit, rollback}) {
            resource.start(branch, XAResource.TMNOFLAGS);
            Room.receive(consumer);
            Room.send(session, out, branch.branch());
            resource.end(branch, XAResource.TMSUCCESS);
            resource.prepare(branch);
        }
        resource.start(open, XAResource.TMNOFLAGS);
        Room.send(session, out, "open");
        restart(room);
        XAResource manager = Distributed.session(room).getXAResource();
        Check.that(Distributed.listed(manager, commit), "the first branch is not listed");
        Check.that(Distributed.listed(manager, rollback), "the second branch is not listed");
        Check.that(!Distributed.listed(manager, open), "a branch never prepared is listed");
        Session reader = room.session();
        MessageConsumer inside = reader.createConsumer(in);
        MessageConsumer outside = reader.createConsumer(out);
        Room.nothing(inside);
        Room.nothing(outside);
        manager.commit(commit, false);
        manager.rollback(rollback);
        Room.expect(outside, "commit");
        Room.expect(inside, "in1");
        Room.nothing(inside);
        Room.nothing(outside);
        Check.that(!Distributed.listed(manager, commit), "still listed");
    }

    @Case(alone = true, needs = "restarts")
    static void uncommittedIsGone(Room room) throws Exception {
        Session session = room.session(Session.SESSION_TRANSACTED);
        Queue queue = room.queue(session);
        Room.send(session, queue, "committed");
        session.commit();
        Room.send(session, queue, "not committed");
        restart(room);
        Session again = room.session();
        MessageConsumer consumer = again.createConsumer(queue);
        Room.expect(consumer, "committed");
        Room.nothing(consumer);
    }

    @Case(alone = true, needs = "restarts")
    static void delayedSurvives(Room room) throws Exception {
        Session session = room.session();
        Queue queue = room.queue(session);
        MessageProducer producer = session.createProducer(queue);
        producer.setDeliveryDelay(4000);
        long due = System.currentTimeMillis() + 4000;
        producer.send(session.createTextMessage("later"));
        restart(room);
        Session again = room.session();
        MessageConsumer consumer = again.createConsumer(queue);
        Room.expect(consumer, "later");
        Check.that(System.currentTimeMillis() >= due - 5, "it came too early");
    }

    /** The client finds the broker again by itself, and its consumers go on. */
    @Case(alone = true, needs = "restarts")
    static void reconnects(Room room) throws Exception {
        Connection connection =
                room.connection(
                        "imqReconnectEnabled", "true",
                        "imqReconnectAttempts", "100",
                        "imqReconnectInterval", "200");
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = room.queue(session);
        MessageConsumer consumer = session.createConsumer(queue);
        MessageProducer producer = session.createProducer(queue);
        producer.send(session.createTextMessage("before"));
        Room.expect(consumer, "before");
        restart();
        Session sender = room.session();
        Room.send(sender, queue, "from another");
        Room.expect(consumer, "from another");
        producer.send(session.createTextMessage("by itself"));
        Room.expect(consumer, "by itself");
    }

    @Case(alone = true, needs = "restarts")
    static void reconnectsWithDurable(Room room) throws Exception {
        Connection connection =
                room.stopped(
                        "imqReconnectEnabled", "true",
                        "imqReconnectAttempts", "100",
                        "imqReconnectInterval", "200",
                        "imqConfiguredClientID", room.name("client"));
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createDurableSubscriber(room.topic(session), "durable");
        restart();
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "m", 3);
        Room.expect(consumer, "m0", "m1", "m2");
        consumer.close();
        session.unsubscribe("durable");
    }

    /** Without reconnecting, the application is told. */
    @Case(alone = true, needs = "restarts")
    static void exceptionListener(Room room) throws Exception {
        Connection connection = room.connection();
        CountDownLatch told = new CountDownLatch(1);
        CountDownLatch event = new CountDownLatch(1);
        connection.setExceptionListener(error -> told.countDown());
        ((com.sun.messaging.jms.Connection) connection)
                .setEventListener(
                        happened -> {
                            if (happened instanceof ConnectionClosedEvent) {
                                event.countDown();
                            }
                        });
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        restart();
        Check.that(told.await(Room.SOON, TimeUnit.MILLISECONDS), "the listener was not called");
        Check.that(event.await(Room.SOON, TimeUnit.MILLISECONDS), "there was no event");
        Check.thrown(JMSException.class, () -> Room.send(session, room.queue(session), "x"));
    }

    /** A broker that does not answer pings is given up. */
    @Case(alone = true, needs = "restarts")
    static void frozenBrokerIsNoticed(Room room) throws Exception {
        Connection connection =
                room.connection(
                        "imqPingInterval", "1",
                        "imqAbortOnPingAckTimeout", "true",
                        "imqPingAckTimeout", "1000");
        CountDownLatch told = new CountDownLatch(1);
        connection.setExceptionListener(error -> told.countDown());
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "fine");
        Runner.ask("FREEZE");
        try {
            Check.that(told.await(Room.SOON, TimeUnit.MILLISECONDS), "nobody noticed");
        } finally {
            Runner.ask("THAW");
        }
    }

    /** A broker that stops says so, and connections end at once. */
    @Case(alone = true, needs = "restarts")
    static void stoppedInOrder(Room room) throws Exception {
        Connection connection = room.connection();
        CountDownLatch told = new CountDownLatch(1);
        connection.setExceptionListener(error -> told.countDown());
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = room.queue(session);
        Room.send(session, queue, "kept");
        Runner.ask("STOP");
        Check.that(told.await(Room.SOON, TimeUnit.MILLISECONDS), "the listener was not called");
        Session again = room.session();
        Room.expect(again.createConsumer(queue), "kept");
    }
}
