package interop;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.JMSSecurityRuntimeException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;

/**
 * Logins, digest and basic; on listeners that know a user guest with the password guest, and one
 * named limited, password limited, who may send only to what starts with "allowed".
 */
final class Logins {
    private Logins() {}

    private static void check(Room room, String address) throws Exception {
        com.sun.messaging.ConnectionFactory factory =
                room.factory("imqAddressList", "mq://" + address + "/jms");
        for (String[] wrong : new String[][] {{"guest", "wrong"}, {"nobody", "guest"}, {"guest", ""}}) {
            Check.thrown(
                    JMSSecurityException.class,
                    () -> factory.createConnection(wrong[0], wrong[1]));
        }
        Check.thrown(
                JMSSecurityRuntimeException.class, () -> factory.createContext("guest", "wrong"));
        Connection connection = room.keep(factory.createConnection("guest", "guest"));
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "in");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.expect(consumer, "in");
    }

    @Case(needs = "digest")
    static void digest(Room room) throws Exception {
        check(room, room.offer("digest"));
    }

    @Case(needs = "basic")
    static void basic(Room room) throws Exception {
        check(room, room.offer("basic"));
    }

    @Case(needs = "limited")
    static void notAllowed(Room room) throws Exception {
        com.sun.messaging.ConnectionFactory factory =
                room.factory("imqAddressList", "mq://" + room.offer("limited") + "/jms");
        Connection connection = room.keep(factory.createConnection("limited", "limited"));
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Check.thrown(
                JMSException.class,
                () -> Room.send(session, session.createQueue("forbidden"), "x"));
        Check.thrown(
                JMSException.class,
                () -> session.createConsumer(session.createQueue("forbidden")));
        String allowed = "allowed" + room.name("");
        Room.send(session, session.createQueue(allowed), "fine");
        Room.expect(session.createConsumer(session.createQueue(allowed)), "fine");
    }
}
