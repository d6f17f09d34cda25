package interop;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.InvalidSelectorException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;

/** Looking into queues. JMS 1.1, section 5.9. */
final class Browsing {
    private Browsing() {}

    private static List<String> seen(QueueBrowser browser) throws Exception {
        List<String> texts = new ArrayList<>();
        Enumeration<?> messages = browser.getEnumeration();
        while (messages.hasMoreElements()) {
            texts.add(((TextMessage) messages.nextElement()).getText());
        }
        return texts;
    }

    @Case
    static void takesNothing(Room room) throws Exception {
        Session session = room.session();
        Room.send(session, room.queue(session), "m", 5);
        QueueBrowser browser = session.createBrowser(room.queue(session));
        Check.equal(Room.numbered("m", 0, 5), seen(browser));
        Check.equal(Room.numbered("m", 0, 5), seen(browser));
        browser.close();
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int i = 0; i < 5; i++) {
            TextMessage got = (TextMessage) Room.receive(consumer);
            Check.equal("m" + i, got.getText());
            Check.equal(false, got.getJMSRedelivered());
            Check.equal(1, got.getIntProperty("JMSXDeliveryCount"));
        }
    }

    @Case
    static void emptyQueue(Room room) throws Exception {
        Session session = room.session();
        QueueBrowser unheardOf = session.createBrowser(session.createQueue(room.name("never")));
        Check.equal(List.of(), seen(unheardOf));
        Room.send(session, room.queue(session), "x");
        Room.expect(session.createConsumer(room.queue(session)), "x");
        Check.equal(List.of(), seen(session.createBrowser(room.queue(session))));
    }

    @Case
    static void selector(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        for (int i = 0; i < 10; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setIntProperty("n", i);
            producer.send(message);
        }
        QueueBrowser browser = session.createBrowser(room.queue(session), "n BETWEEN 3 AND 5");
        Check.equal("n BETWEEN 3 AND 5", browser.getMessageSelector());
        Check.equal(List.of("m3", "m4", "m5"), seen(browser));
        Check.equal(List.of(), seen(session.createBrowser(room.queue(session), "n > 100")));
    }

    @Case
    static void invalidSelector(Room room) throws Exception {
        Session session = room.session();
        Room.send(session, room.queue(session), "x");
        Check.thrown(
                InvalidSelectorException.class,
                () -> seen(session.createBrowser(room.queue(session), "n = = 1")));
    }

    @Case
    static void byPriority(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        for (int priority : new int[] {1, 8, 4}) {
            TextMessage message = session.createTextMessage("p" + priority);
            producer.send(message, DeliveryMode.PERSISTENT, priority, 0);
        }
        Check.equal(List.of("p8", "p4", "p1"), seen(session.createBrowser(room.queue(session))));
    }

    /** More than the client fetches at once. */
    @Case
    static void thousands(Room room) throws Exception {
        Connection connection = room.connection("imqQueueBrowserMaxMessagesPerRetrieve", "300");
        Session session = connection.createSession(true, 0);
        MessageProducer producer = session.createProducer(room.queue(session));
        for (int i = 0; i < 2500; i++) {
            producer.send(session.createTextMessage("m" + i));
            if (i % 500 == 499) {
                session.commit();
            }
        }
        Check.equal(Room.numbered("m", 0, 2500), seen(session.createBrowser(room.queue(session))));
    }

    /** Of a connection that is not started, too. */
    @Case
    static void withoutStart(Room room) throws Exception {
        Session sender = room.session();
        Room.send(sender, room.queue(sender), "m", 3);
        Session session = room.stopped().createSession(false, Session.AUTO_ACKNOWLEDGE);
        Check.equal(Room.numbered("m", 0, 3), seen(session.createBrowser(room.queue(session))));
    }

    /** What a consumer holds without having acknowledged it is still in the queue. */
    @Case
    static void unacknowledged(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 3);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.expect(consumer, "m0", "m1", "m2");
        Session other = room.session();
        Check.equal(Room.numbered("m", 0, 3), seen(other.createBrowser(room.queue(other))));
    }

    @Case
    static void notWhatIsDelayed(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        producer.setDeliveryDelay(30_000);
        producer.send(session.createTextMessage("later"));
        producer.setDeliveryDelay(0);
        producer.send(session.createTextMessage("now"));
        Check.equal(List.of("now"), seen(session.createBrowser(room.queue(session))));
    }

    /** An enumeration is of a moment: what is taken meanwhile is left out or still shown. */
    @Case
    static void takenMeanwhile(Room room) throws Exception {
        Session session = room.session("imqQueueBrowserMaxMessagesPerRetrieve", "10");
        Room.send(session, room.queue(session), "m", 30);
        Enumeration<?> messages = session.createBrowser(room.queue(session)).getEnumeration();
        Check.that(messages.hasMoreElements(), "nothing is seen");
        Session other = room.session();
        MessageConsumer consumer = other.createConsumer(room.queue(other));
        Room.texts(consumer, 30);
        consumer.close();
        int count = 0;
        while (messages.hasMoreElements()) {
            messages.nextElement();
            count++;
        }
        Check.that(count >= 1 && count <= 30, count + " seen");
    }
}
