package interop;

import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;

/** The dead message queue of Open MQ, mq.sys.dmq. */
final class Dead {
    private Dead() {}

    private static final String QUEUE = "mq.sys.dmq";

    /** Sends a message that expires at once, and has the broker notice. */
    private static TextMessage expire(Room room, Boolean preserve, boolean truncate) throws Exception {
        Session session = room.session();
        TextMessage message = session.createTextMessage("too late");
        message.setStringProperty("mark", room.name(""));
        if (preserve != null) {
            message.setBooleanProperty("JMS_SUN_PRESERVE_UNDELIVERED", preserve);
        }
        if (truncate) {
            message.setBooleanProperty("JMS_SUN_TRUNCATE_MSG_BODY", true);
        }
        MessageProducer producer = session.createProducer(room.queue(session));
        producer.send(message, DeliveryMode.PERSISTENT, 6, 100);
        Thread.sleep(400);
        Room.nothing(session.createConsumer(room.queue(session)));
        return message;
    }

    private static MessageConsumer grave(Room room) throws Exception {
        Session session = room.session();
        return session.createConsumer(
                session.createQueue(QUEUE), "mark = '" + room.name("") + "'");
    }

    @Case
    static void expired(Room room) throws Exception {
        long before = System.currentTimeMillis();
        TextMessage sent = expire(room, null, false);
        TextMessage got = (TextMessage) Room.receive(grave(room));
        Check.equal("too late", got.getText());
        Check.equal(sent.getJMSMessageID(), got.getJMSMessageID());
        Check.equal(6, got.getJMSPriority());
        Check.equal("EXPIRED", got.getStringProperty("JMS_SUN_DMQ_UNDELIVERED_REASON"));
        Check.equal(0, got.getObjectProperty("JMS_SUN_DMQ_DELIVERY_COUNT"));
        Check.equal(false, got.getObjectProperty("JMS_SUN_DMQ_BODY_TRUNCATED"));
        long at = got.getLongProperty("JMS_SUN_DMQ_UNDELIVERED_TIMESTAMP");
        Check.that(at >= before && at <= System.currentTimeMillis(), "" + at);
        Check.that(got.propertyExists("JMS_SUN_DMQ_DEAD_BROKER"), "no JMS_SUN_DMQ_DEAD_BROKER");
    }

    @Case
    static void notPreserved(Room room) throws Exception {
        expire(room, false, false);
        Room.nothing(grave(room));
    }

    @Case
    static void preserved(Room room) throws Exception {
        expire(room, true, false);
        Room.receive(grave(room));
    }

    @Case
    static void truncated(Room room) throws Exception {
        expire(room, null, true);
        Message got = Room.receive(grave(room));
        Check.equal(true, got.getObjectProperty("JMS_SUN_DMQ_BODY_TRUNCATED"));
        Check.that(
                !(got instanceof TextMessage) || ((TextMessage) got).getText() == null,
                "the body is there");
    }

    /** One that expires in the client's buffer is declared dead by the client. */
    @Case
    static void expiredInTheClient(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        MessageProducer producer = session.createProducer(room.queue(session));
        TextMessage message = session.createTextMessage("too late");
        message.setStringProperty("mark", room.name(""));
        producer.send(message, DeliveryMode.PERSISTENT, 4, 200);
        Thread.sleep(500);
        Room.nothing(consumer);
        Message got = Room.receive(grave(room));
        Check.equal("EXPIRED", got.getStringProperty("JMS_SUN_DMQ_UNDELIVERED_REASON"));
    }

    @Case
    static void onDurableSubscription(Room room) throws Exception {
        Session session = room.named(room.name("client")).createSession(false, 1);
        session.createDurableSubscriber(room.topic(session), "durable").close();
        TextMessage message = session.createTextMessage("too late");
        message.setStringProperty("mark", room.name(""));
        MessageProducer producer = session.createProducer(room.topic(session));
        producer.send(message, DeliveryMode.PERSISTENT, 4, 100);
        Thread.sleep(400);
        MessageConsumer consumer = session.createDurableSubscriber(room.topic(session), "durable");
        Room.nothing(consumer);
        consumer.close();
        session.unsubscribe("durable");
        Room.receive(grave(room));
    }

    @Case
    static void noProducer(Room room) throws Exception {
        Session session = room.session();
        Check.thrown(
                JMSException.class,
                () -> session.createProducer(session.createQueue(QUEUE)));
        Room.send(session, room.queue(session), "the session goes on");
        Room.expect(session.createConsumer(room.queue(session)), "the session goes on");
    }
}
