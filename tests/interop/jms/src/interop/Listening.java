package interop;

import jakarta.jms.Connection;
import jakarta.jms.ConnectionConsumer;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.ServerSession;
import jakarta.jms.ServerSessionPool;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;

/** Messages handed to listeners. JMS 1.1, sections 4.5.2 and 8.2. */
final class Listening {
    private Listening() {}

    private static String text(Message message) {
        try {
            return ((TextMessage) message).getText();
        } catch (JMSException error) {
            throw new AssertionError(error);
        }
    }

    @Case
    static void inOrder(Room room) throws Exception {
        Session session = room.session();
        List<String> got = new CopyOnWriteArrayList<>();
        session.createConsumer(room.queue(session)).setMessageListener(m -> got.add(text(m)));
        Session sender = room.session();
        Room.send(sender, room.queue(sender), "m", 500);
        Wait.until(() -> got.size() >= 500, () -> got.size() + " came");
        Check.equal(Room.numbered("m", 0, 500), got);
    }

    @Case
    static void clientAcknowledge(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 10);
        List<String> got = new CopyOnWriteArrayList<>();
        Session reading = room.session(Session.CLIENT_ACKNOWLEDGE);
        reading.createConsumer(room.queue(reading))
                .setMessageListener(
                        message -> {
                            try {
                                if (text(message).equals("m4")) {
                                    message.acknowledge();
                                }
                                got.add(text(message));
                            } catch (JMSException error) {
                                got.add(error.toString());
                            }
                        });
        Wait.until(() -> got.size() == 10, () -> got + " came");
        reading.close();
        MessageConsumer rest = session.createConsumer(room.queue(session));
        Check.equal(Room.numbered("m", 5, 10), Room.texts(rest, 5));
    }

    @Case
    static void transacted(Room room) throws Exception {
        Session sender = room.session();
        Room.send(sender, room.queue(sender), "m", 6);
        Session session = room.session(Session.SESSION_TRANSACTED);
        List<String> got = new CopyOnWriteArrayList<>();
        AtomicInteger failures = new AtomicInteger();
        session.createConsumer(room.queue(session))
                .setMessageListener(
                        message -> {
                            try {
                                if (text(message).equals("m2") && failures.getAndIncrement() == 0) {
                                    session.rollback();
                                    return;
                                }
                                got.add(text(message));
                                session.commit();
                            } catch (JMSException error) {
                                got.add(error.toString());
                            }
                        });
        Wait.until(() -> got.size() == 6, () -> got + " came");
        Check.equal(Room.numbered("m", 0, 6), got);
    }

    /** A listener that fails gets its message once more. JMS 1.1, section 4.5.2. */
    @Case
    static void failing(Room room) throws Exception {
        Session session = room.session();
        List<String> got = new CopyOnWriteArrayList<>();
        session.createConsumer(room.queue(session))
                .setMessageListener(
                        message -> {
                            try {
                                String mark = message.getJMSRedelivered() ? " again" : "";
                                got.add(text(message) + mark);
                                if (mark.isEmpty() && text(message).equals("m1")) {
                                    throw new IllegalArgumentException("a listener fails");
                                }
                            } catch (JMSException error) {
                                got.add(error.toString());
                            }
                        });
        Session sender = room.session();
        Room.send(sender, room.queue(sender), "m", 3);
        Wait.until(() -> got.contains("m2") && got.contains("m1 again"), () -> got + " came");
        Check.equal(1L, got.stream().filter(text -> text.equals("m1")).count());
    }

    /** stop() waits for the listener, and nothing comes until start(). */
    @Case
    static void stopAndStart(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        AtomicInteger count = new AtomicInteger();
        session.createConsumer(room.queue(session))
                .setMessageListener(
                        message -> {
                            count.incrementAndGet();
                            pause(2);
                        });
        Session sender = room.session();
        Room.send(sender, room.queue(sender), "m", 200);
        connection.stop();
        int before = count.get();
        pause(200);
        Check.equal(before, count.get());
        connection.start();
        Wait.until(() -> count.get() == 200, () -> count + " of 200 came");
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    @Case
    static void severalInOneSession(Room room) throws Exception {
        Session session = room.session();
        List<String> got = new CopyOnWriteArrayList<>();
        for (int i = 0; i < 4; i++) {
            Queue queue = session.createQueue(room.name("q" + i));
            session.createConsumer(queue).setMessageListener(m -> got.add(text(m)));
        }
        Session sender = room.session();
        for (int i = 0; i < 4; i++) {
            Room.send(sender, sender.createQueue(room.name("q" + i)), i + ".", 25);
        }
        Wait.until(() -> got.size() >= 100, () -> got.size() + " came");
        for (int i = 0; i < 4; i++) {
            String prefix = i + ".";
            List<String> ofOne = got.stream().filter(text -> text.startsWith(prefix)).toList();
            Check.equal(Room.numbered(prefix, 0, 25), ofOne);
        }
    }

    /** How an application server consumes. JMS 1.1, section 8.2.5. */
    @Case
    static void connectionConsumer(Room room) throws Exception {
        Connection connection = room.connection();
        List<String> got = new CopyOnWriteArrayList<>();
        Pool pool = new Pool(connection, got);
        Session sender = room.session();
        Queue queue = room.queue(sender);
        ConnectionConsumer consumer =
                connection.createConnectionConsumer(queue, "wanted", pool, 5);
        MessageProducer producer = sender.createProducer(queue);
        for (int i = 0; i < 40; i++) {
            TextMessage message = sender.createTextMessage("m" + i);
            message.setBooleanProperty("wanted", i % 2 == 0);
            producer.send(message, DeliveryMode.PERSISTENT, 4, 0);
        }
        Wait.until(() -> got.size() >= 20, () -> got.size() + " came");
        consumer.close();
        Check.equal(20, got.size());
        MessageConsumer rest = sender.createConsumer(queue);
        for (int i = 1; i < 40; i += 2) {
            Room.expect(rest, "m" + i);
        }
        Room.nothing(rest);
    }

    /** One session that runs in the thread that asks for it. */
    private static final class Pool implements ServerSessionPool, ServerSession {
        private final Session session;

        Pool(Connection connection, List<String> got) throws JMSException {
            session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            session.setMessageListener(message -> got.add(text(message)));
        }

        @Override
        public ServerSession getServerSession() {
            return this;
        }

        @Override
        public Session getSession() {
            return session;
        }

        @Override
        public void start() {
            session.run();
        }
    }

    /** A listener may recover its session. */
    @Case
    static void recoverInside(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        List<String> got = new CopyOnWriteArrayList<>();
        session.createConsumer(room.queue(session))
                .setMessageListener(
                        message -> {
                            try {
                                got.add(text(message) + message.getIntProperty("JMSXDeliveryCount"));
                                if (message.getIntProperty("JMSXDeliveryCount") == 1) {
                                    session.recover();
                                } else {
                                    message.acknowledge();
                                }
                            } catch (JMSException error) {
                                got.add(error.toString());
                            }
                        });
        Session sender = room.session();
        Room.send(sender, room.queue(sender), "a.", "b.");
        Wait.until(() -> got.size() >= 4, () -> got + " came");
        Check.equal(List.of("a.1", "a.2", "b.1", "b.2"), got);
    }

    @Case
    static void durableConnectionConsumer(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        List<String> got = new CopyOnWriteArrayList<>();
        Pool pool = new Pool(connection, got);
        Session sender = room.session();
        ConnectionConsumer consumer =
                connection.createDurableConnectionConsumer(
                        room.topic(sender), "durable", null, pool, 3);
        Room.send(sender, room.topic(sender), "m", 10);
        Wait.until(() -> got.size() >= 10, () -> got + " came");
        consumer.close();
        Room.send(sender, room.topic(sender), "later");
        Check.equal(Room.numbered("m", 0, 10), got);
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer rest = session.createDurableSubscriber(room.topic(session), "durable");
        Room.expect(rest, "later");
        rest.close();
        session.unsubscribe("durable");
    }
}
