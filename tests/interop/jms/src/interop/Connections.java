package interop;

import jakarta.jms.Connection;
import jakarta.jms.ConnectionMetaData;
import jakarta.jms.IllegalStateException;
import jakarta.jms.InvalidClientIDException;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** Connections and sessions: addresses, client identifiers, start, stop, close. JMS 1.1, chapter 4.3. */
final class Connections {
    private Connections() {}

    private static void works(Room room, Session session) throws Exception {
        Room.send(session, room.queue(session), "works");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.expect(consumer, "works");
        consumer.close();
    }

    @Case
    static void throughThePortMapper(Room room) throws Exception {
        for (String url : new String[] {
            room.host + ":" + room.port,
            "mq://" + room.host + ":" + room.port,
            "mq://" + room.host + ":" + room.port + "/jms",
        }) {
            works(room, room.session("imqAddressList", url));
        }
    }

    @Case
    static void straightToTheService(Room room) throws Exception {
        works(room, room.session("imqAddressList", "mqtcp://" + room.host + ":" + room.servicePort() + "/jms"));
    }

    /** The older settings: host and port apart. */
    @Case
    static void hostAndPort(Room room) throws Exception {
        works(
                room,
                room.session(
                        "imqAddressList", "",
                        "imqBrokerHostName", room.host,
                        "imqBrokerHostPort", "" + room.port));
    }

    @Case
    static void secondOfTheList(Room room) throws Exception {
        works(room, room.session("imqAddressList", "mq://127.0.0.1:1/jms," + room.url()));
    }

    @Case
    static void nobodyThere(Room room) throws Exception {
        Check.thrown(
                JMSException.class,
                () -> room.factory("imqAddressList", "mq://127.0.0.1:1/jms").createConnection());
    }

    @Case
    static void hundred(Room room) throws Exception {
        List<Session> sessions = new ArrayList<>();
        List<MessageConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            Session session = room.session();
            sessions.add(session);
            consumers.add(session.createConsumer(session.createQueue(room.name("q" + i))));
        }
        for (int i = 0; i < 100; i++) {
            Session from = sessions.get((i + 50) % 100);
            Room.send(from, from.createQueue(room.name("q" + i)), "to " + i);
        }
        for (int i = 0; i < 100; i++) {
            Room.expect(consumers.get(i), "to " + i);
        }
    }

    @Case
    static void openedAndClosed(Room room) throws Exception {
        for (int i = 0; i < 50; i++) {
            Connection connection = room.factory().createConnection();
            connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            connection.close();
        }
    }

    @Case
    static void manySessions(Room room) throws Exception {
        Connection connection = room.connection();
        List<Session> sessions = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            sessions.add(connection.createSession(i % 2 == 0, i % 2));
        }
        for (Session session : sessions) {
            session.close();
        }
        works(room, connection.createSession(false, Session.AUTO_ACKNOWLEDGE));
    }

    @Case
    static void nothingBeforeStart(Room room) throws Exception {
        Connection connection = room.stopped();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.send(session, room.queue(session), "m", 3);
        Room.nothing(consumer);
        connection.start();
        Check.equal(Room.numbered("m", 0, 3), Room.texts(consumer, 3));
    }

    @Case
    static void stopAndStart(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Session sender = room.session();
        for (int i = 0; i < 5; i++) {
            connection.stop();
            Room.send(sender, room.queue(sender), "m", 4);
            Check.equal(null, consumer.receive(50));
            connection.start();
            Check.equal(Room.numbered("m", 0, 4), Room.texts(consumer, 4));
        }
    }

    @Case
    static void clientIdentifierOnce(Room room) throws Exception {
        Connection first = room.named(room.name("client"));
        Connection second = room.stopped();
        Check.thrown(
                InvalidClientIDException.class, () -> second.setClientID(room.name("client")));
        first.close();
        Connection third = room.stopped();
        third.setClientID(room.name("client"));
        Check.equal(room.name("client"), third.getClientID());
    }

    @Case
    static void clientIdentifierTooLate(Room room) throws Exception {
        Connection connection = room.stopped();
        connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Check.thrown(IllegalStateException.class, () -> connection.setClientID(room.name("late")));
        Connection configured = room.stopped("imqConfiguredClientID", room.name("configured"));
        Check.equal(room.name("configured"), configured.getClientID());
        Check.thrown(IllegalStateException.class, () -> configured.setClientID(room.name("other")));
    }

    /** An application that is refused an identifier may go on without. */
    @Case
    static void afterARefusedIdentifier(Room room) throws Exception {
        room.named(room.name("client"));
        Connection second = room.stopped();
        Check.thrown(
                InvalidClientIDException.class, () -> second.setClientID(room.name("client")));
        second.start();
        works(room, second.createSession(false, Session.AUTO_ACKNOWLEDGE));
    }

    @Case
    static void illegalNames(Room room) throws Exception {
        Session session = room.session();
        for (String name : new String[] {"bad-name", "1st", "with blank", "mq.private"}) {
            Check.thrown(
                    JMSException.class,
                    () -> session.createProducer(session.createQueue(name)).close());
        }
        Check.thrown(InvalidDestinationException.class, () -> session.createConsumer(null));
        works(room, session);
    }

    @Case
    static void unusualNames(Room room) throws Exception {
        Session session = room.session();
        for (String suffix : new String[] {"$_.x", "\u00e4\u00f6\u00fc", "\u4e2d\u6587", "n".repeat(200)}) {
            Room.send(session, session.createQueue(room.name(suffix)), suffix);
            MessageConsumer consumer = session.createConsumer(session.createQueue(room.name(suffix)));
            Room.expect(consumer, suffix);
            consumer.close();
        }
    }

    @Case
    static void metaData(Room room) throws Exception {
        ConnectionMetaData data = room.connection().getMetaData();
        Check.that(data.getJMSMajorVersion() >= 2, "JMS " + data.getJMSVersion());
        Check.that(
                Collections.list(data.getJMSXPropertyNames()).contains("JMSXDeliveryCount"),
                "no JMSXDeliveryCount");
    }

    @Case
    static void closedIsClosed(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(room.queue(session));
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        producer.close();
        Check.thrown(
                IllegalStateException.class, () -> producer.send(session.createTextMessage("x")));
        consumer.close();
        consumer.close();
        Check.thrown(IllegalStateException.class, () -> consumer.receive(1));
        session.close();
        Check.thrown(IllegalStateException.class, () -> session.createTextMessage("x"));
        connection.close();
        connection.close();
        Check.thrown(IllegalStateException.class, () -> connection.createSession(false, 1));
    }

    /** receive() ends with null when the consumer is closed elsewhere. */
    @Case
    static void closedWhileReceiving(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Object[] got = {"still waiting"};
        Thread reader =
                new Thread(
                        () -> {
                            try {
                                got[0] = consumer.receive();
                            } catch (JMSException error) {
                                got[0] = error;
                            }
                        });
        reader.start();
        Thread.sleep(100);
        connection.close();
        reader.join(Room.SOON);
        Check.equal(null, got[0]);
    }

    /**
     * Pings that are answered in time keep a quiet connection. This takes longest, so it has the most
     * seconds and begins first.
     */
    @Case(seconds = 200)
    static void quietConnectionIsKept(Room room) throws Exception {
        Session session =
                room.session(
                        "imqPingInterval", "1",
                        "imqAbortOnPingAckTimeout", "true",
                        "imqPingAckTimeout", "3000");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(null, consumer.receive(8000));
        Session sender = room.session();
        Room.send(sender, room.queue(sender), "still there");
        Room.expect(consumer, "still there");
    }

    /** What is larger than the broker takes is refused, and the connection goes on. */
    @Case(needs = "limit")
    static void tooLarge(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        jakarta.jms.BytesMessage message = session.createBytesMessage();
        message.writeBytes(new byte[Integer.parseInt(room.offer("limit")) + 1]);
        Check.thrown(JMSException.class, () -> producer.send(message));
        works(room, session);
    }

    @Case(needs = "tls")
    static void overTls(Room room) throws Exception {
        for (String url : new String[] {
            "mqssl://" + room.offer("tls") + "/ssljms",
            "mq://" + room.host + ":" + room.port + "/ssljms",
        }) {
            Session session = room.session("imqAddressList", url, "imqSSLIsHostTrusted", "true");
            works(room, session);
            // more than one TLS record
            session.createProducer(room.queue(session))
                    .send(session.createTextMessage("t".repeat(100_000)));
            MessageConsumer consumer = session.createConsumer(room.queue(session));
            Check.equal(100_000, Room.text(consumer).length());
            consumer.close();
        }
    }
}
