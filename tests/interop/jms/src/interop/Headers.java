package interop;

import jakarta.jms.DeliveryMode;
import jakarta.jms.Destination;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.HashSet;
import java.util.Set;

/** Header fields. JMS 1.1, section 3.4; delivery time: JMS 2.0, section 3.4.13. */
final class Headers {
    private Headers() {}

    private static Message through(Room room, Session session, Message message) throws Exception {
        session.createProducer(room.queue(session)).send(message);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        return Room.receive(consumer);
    }

    @Case
    static void highPriorityFirst(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        for (int priority : new int[] {3, 9, 0, 5, 7, 1, 4, 8, 2, 6}) {
            Message message = session.createTextMessage("" + priority);
            producer.send(message, DeliveryMode.PERSISTENT, priority, 0);
        }
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int priority = 9; priority >= 0; priority--) {
            TextMessage got = (TextMessage) Room.receive(consumer);
            Check.equal("" + priority, got.getText());
            Check.equal(priority, got.getJMSPriority());
        }
    }

    @Case
    static void samePriorityInOrder(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        for (int i = 0; i < 60; i++) {
            Message message = session.createTextMessage(i % 3 + " " + i);
            producer.send(message, DeliveryMode.NON_PERSISTENT, 2 + i % 3, 0);
        }
        // a persistent one is answered, so that those before it have arrived
        producer.send(session.createTextMessage("last"), DeliveryMode.PERSISTENT, 0, 0);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int level = 2; level >= 0; level--) {
            for (int i = level; i < 60; i += 3) {
                Check.equal(level + " " + i, Room.text(consumer));
            }
        }
        Room.expect(consumer, "last");
    }

    @Case
    static void deliveryMode(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int mode : new int[] {DeliveryMode.NON_PERSISTENT, DeliveryMode.PERSISTENT}) {
            producer.setDeliveryMode(mode);
            producer.send(session.createTextMessage("x"));
            Check.equal(mode, Room.receive(consumer).getJMSDeliveryMode());
        }
    }

    @Case
    static void expiration(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Message sent = session.createTextMessage("x");
        long before = System.currentTimeMillis();
        producer.send(sent, DeliveryMode.PERSISTENT, 4, 60_000);
        long after = System.currentTimeMillis();
        long expiration = Room.receive(consumer).getJMSExpiration();
        Check.that(expiration >= before + 60_000 && expiration <= after + 60_000, "" + expiration);
        Check.equal(sent.getJMSExpiration(), expiration);
        producer.send(session.createTextMessage("for ever"));
        Check.equal(0L, Room.receive(consumer).getJMSExpiration());
    }

    @Case
    static void expiredIsNotDelivered(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        producer.send(session.createTextMessage("old"), DeliveryMode.PERSISTENT, 4, 50);
        producer.send(session.createTextMessage("new"));
        Thread.sleep(300);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.expect(consumer, "new");
        Room.nothing(consumer);
    }

    /** One that expires in the buffer of the client is not handed out either. */
    @Case
    static void expiredInTheClient(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        MessageProducer producer = session.createProducer(room.queue(session));
        producer.send(session.createTextMessage("old"), DeliveryMode.PERSISTENT, 4, 200);
        producer.send(session.createTextMessage("new"));
        Thread.sleep(600);
        Room.expect(consumer, "new");
        Room.nothing(consumer);
    }

    @Case
    static void timestamp(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createTextMessage("x");
        long before = System.currentTimeMillis();
        Message got = through(room, session, sent);
        Check.that(
                got.getJMSTimestamp() >= before
                        && got.getJMSTimestamp() <= System.currentTimeMillis(),
                "JMSTimestamp " + got.getJMSTimestamp());
        Check.equal(sent.getJMSTimestamp(), got.getJMSTimestamp());
    }

    @Case
    static void messageIdentity(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Set<String> seen = new HashSet<>();
        for (int i = 0; i < 50; i++) {
            Message sent = session.createTextMessage("x");
            producer.send(sent);
            Message got = Room.receive(consumer);
            Check.equal(sent.getJMSMessageID(), got.getJMSMessageID());
            Check.that(got.getJMSMessageID().startsWith("ID:"), got.getJMSMessageID());
            Check.that(seen.add(got.getJMSMessageID()), "twice " + got.getJMSMessageID());
        }
    }

    @Case
    static void correlationText(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createTextMessage("x");
        sent.setJMSCorrelationID("request \u00b5 17");
        Check.equal("request \u00b5 17", through(room, session, sent).getJMSCorrelationID());
    }

    @Case
    static void correlationBytes(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createTextMessage("x");
        byte[] bytes = "0123abc".getBytes("US-ASCII");
        sent.setJMSCorrelationIDAsBytes(bytes);
        Check.equal(bytes, through(room, session, sent).getJMSCorrelationIDAsBytes());
    }

    @Case
    static void type(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createTextMessage("x");
        sent.setJMSType("order/new");
        Message got = through(room, session, sent);
        Check.equal("order/new", got.getJMSType());
        Check.equal(null, got.getJMSReplyTo());
        Check.equal(null, got.getJMSCorrelationID());
    }

    @Case
    static void destination(Room room) throws Exception {
        Session session = room.session();
        Destination to = through(room, session, session.createTextMessage("x")).getJMSDestination();
        Check.that(to instanceof Queue && !(to instanceof Topic), "" + to.getClass());
        Check.equal(room.name(""), ((Queue) to).getQueueName());
        MessageConsumer consumer = session.createConsumer(room.topic(session));
        Room.send(session, room.topic(session), "x");
        to = Room.receive(consumer).getJMSDestination();
        Check.that(to instanceof Topic && !(to instanceof Queue), "" + to.getClass());
        Check.equal(room.name(""), ((Topic) to).getTopicName());
    }

    @Case
    static void replyToQueue(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createTextMessage("x");
        sent.setJMSReplyTo(session.createQueue(room.name("answers")));
        Destination to = through(room, session, sent).getJMSReplyTo();
        Check.that(to instanceof Queue && !(to instanceof Topic), "" + to.getClass());
        Check.equal(room.name("answers"), ((Queue) to).getQueueName());
    }

    @Case
    static void replyToTopic(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createTextMessage("x");
        sent.setJMSReplyTo(session.createTopic(room.name("answers")));
        Destination to = through(room, session, sent).getJMSReplyTo();
        Check.that(to instanceof Topic && !(to instanceof Queue), "" + to.getClass());
        Check.equal(room.name("answers"), ((Topic) to).getTopicName());
    }

    @Case
    static void replyToTemporary(Room room) throws Exception {
        Session session = room.session();
        TemporaryQueue answers = session.createTemporaryQueue();
        MessageConsumer reader = session.createConsumer(answers);
        Message sent = session.createTextMessage("x");
        sent.setJMSReplyTo(answers);
        Session other = room.session();
        Destination to = through(room, other, sent).getJMSReplyTo();
        Check.that(to instanceof TemporaryQueue, "" + to.getClass());
        Room.send(other, to, "answer");
        Room.expect(reader, "answer");
    }

    @Case
    static void deliveryDelay(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        producer.setDeliveryDelay(3000);
        long before = System.currentTimeMillis();
        producer.send(session.createTextMessage("later"));
        producer.setDeliveryDelay(0);
        producer.send(session.createTextMessage("now"));
        Room.expect(consumer, "now");
        Message got = Room.receive(consumer);
        Check.that(System.currentTimeMillis() >= before + 3000, "it came too early");
        Check.equal("later", ((TextMessage) got).getText());
        Check.that(got.getJMSDeliveryTime() >= before + 3000, "" + got.getJMSDeliveryTime());
    }

    @Case
    static void shorterDelayFirst(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int delay : new int[] {2000, 500, 1200}) {
            producer.setDeliveryDelay(delay);
            producer.send(session.createTextMessage("after " + delay));
        }
        Room.expect(consumer, "after 500", "after 1200", "after 2000");
    }

    @Case
    static void delayOnTopic(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer consumer = session.createConsumer(room.topic(session));
        MessageProducer producer = session.createProducer(room.topic(session));
        producer.setDeliveryDelay(800);
        producer.send(session.createTextMessage("later"));
        Room.nothing(consumer);
        Room.expect(consumer, "later");
    }

    @Case
    static void deliveryCountAndRedelivered(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "x");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int count = 1; count <= 4; count++) {
            Message got = Room.receive(consumer);
            Check.equal(count, got.getIntProperty("JMSXDeliveryCount"));
            Check.equal(count > 1, got.getJMSRedelivered());
            session.recover();
        }
    }
}
