package interop;

import jakarta.jms.CompletionListener;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSProducer;
import jakarta.jms.JMSRuntimeException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;

/** What JMS 2.0 added: contexts, and sends that are completed later. Sections 2.8 and 7.3. */
final class Simplified {
    private Simplified() {}

    @Case
    static void sendAndReceive(Room room) throws Exception {
        JMSContext context = room.context(JMSContext.AUTO_ACKNOWLEDGE);
        Queue queue = context.createQueue(room.name(""));
        context.createProducer().send(queue, "text").send(queue, Map.of("key", 5));
        context.createProducer().send(queue, new byte[] {1, 2, 3});
        JMSConsumer consumer = context.createConsumer(queue);
        Check.equal("text", consumer.receiveBody(String.class, Room.SOON));
        Check.equal(Map.of("key", 5), consumer.receiveBody(Map.class, Room.SOON));
        Check.equal(new byte[] {1, 2, 3}, consumer.receiveBody(byte[].class, Room.SOON));
        Check.equal(null, consumer.receiveNoWait());
    }

    @Case
    static void producerSettings(Room room) throws Exception {
        JMSContext context = room.context(JMSContext.AUTO_ACKNOWLEDGE);
        Queue queue = context.createQueue(room.name(""));
        JMSProducer producer = context.createProducer();
        producer.setPriority(8).setTimeToLive(100_000).setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        producer.setJMSType("kind").setJMSCorrelationID("cid").setProperty("n", 5);
        producer.setJMSReplyTo(context.createTopic(room.name("answers")));
        producer.send(queue, "x");
        Message got = context.createConsumer(queue).receive(Room.SOON);
        Check.equal(8, got.getJMSPriority());
        Check.equal(DeliveryMode.NON_PERSISTENT, got.getJMSDeliveryMode());
        Check.that(got.getJMSExpiration() > 0, "no expiration");
        Check.equal("kind", got.getJMSType());
        Check.equal("cid", got.getJMSCorrelationID());
        Check.equal(5, got.getIntProperty("n"));
        Check.that(got.getJMSReplyTo() instanceof Topic, "" + got.getJMSReplyTo());
    }

    @Case
    static void transacted(Room room) throws Exception {
        JMSContext context = room.context(JMSContext.SESSION_TRANSACTED);
        Queue queue = context.createQueue(room.name(""));
        context.createProducer().send(queue, "dropped");
        context.rollback();
        context.createProducer().send(queue, "kept");
        context.commit();
        JMSConsumer consumer = context.createConsumer(queue);
        Check.equal("kept", consumer.receiveBody(String.class, Room.SOON));
        context.rollback();
        Check.equal("kept", consumer.receiveBody(String.class, Room.SOON));
        context.commit();
        Check.equal(null, consumer.receive(Room.QUIET));
    }

    @Case
    static void clientAcknowledge(Room room) throws Exception {
        JMSContext context = room.context(JMSContext.CLIENT_ACKNOWLEDGE);
        Queue queue = context.createQueue(room.name(""));
        context.createProducer().send(queue, "one").send(queue, "two");
        JMSConsumer consumer = context.createConsumer(queue);
        Check.equal("one", consumer.receiveBody(String.class, Room.SOON));
        context.acknowledge();
        Check.equal("two", consumer.receiveBody(String.class, Room.SOON));
        context.recover();
        Check.equal("two", consumer.receiveBody(String.class, Room.SOON));
        context.acknowledge();
    }

    /** A context made from another shares its connection; closing one leaves the other. */
    @Case
    static void contextOfContext(Room room) throws Exception {
        JMSContext context = room.context(JMSContext.AUTO_ACKNOWLEDGE);
        JMSContext second = room.keep(context.createContext(JMSContext.AUTO_ACKNOWLEDGE));
        Queue queue = context.createTemporaryQueue();
        second.createProducer().send(queue, "x");
        context.close();
        Check.equal("x", second.createConsumer(queue).receiveBody(String.class, Room.SOON));
        Check.thrown(JMSRuntimeException.class, () -> context.createProducer().send(queue, "y"));
    }

    @Case
    static void notStartedAutomatically(Room room) throws Exception {
        JMSContext context = room.context(JMSContext.AUTO_ACKNOWLEDGE);
        context.setAutoStart(false);
        Queue queue = context.createQueue(room.name(""));
        context.createProducer().send(queue, "x");
        JMSConsumer consumer = context.createConsumer(queue);
        Check.equal(null, consumer.receive(Room.QUIET));
        context.start();
        Check.equal("x", consumer.receiveBody(String.class, Room.SOON));
    }

    @Case
    static void durableOfContext(Room room) throws Exception {
        JMSContext context = room.context(JMSContext.AUTO_ACKNOWLEDGE);
        context.setClientID(room.name("client"));
        Topic topic = context.createTopic(room.name(""));
        context.createDurableConsumer(topic, "durable").close();
        context.createProducer().send(topic, "kept");
        JMSConsumer consumer = context.createDurableConsumer(topic, "durable");
        Check.equal("kept", consumer.receiveBody(String.class, Room.SOON));
        consumer.close();
        context.unsubscribe("durable");
    }

    /** Collects what is completed, in order. */
    private static final class Completed implements CompletionListener {
        final List<String> texts = new CopyOnWriteArrayList<>();
        final List<Exception> errors = new CopyOnWriteArrayList<>();

        @Override
        public void onCompletion(Message message) {
            try {
                texts.add(((TextMessage) message).getText());
            } catch (jakarta.jms.JMSException error) {
                errors.add(error);
            }
        }

        @Override
        public void onException(Message message, Exception error) {
            errors.add(error);
        }
    }

    @Case
    static void completedLater(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        Completed completed = new Completed();
        for (int i = 0; i < 200; i++) {
            producer.send(session.createTextMessage("m" + i), completed);
        }
        Wait.until(() -> completed.texts.size() == 200, () -> completed.texts.size() + " completed");
        Check.equal(Room.numbered("m", 0, 200), completed.texts);
        Check.equal(List.of(), completed.errors);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(Room.numbered("m", 0, 200), Room.texts(consumer, 200));
    }

    @Case
    static void completedLaterNonPersistent(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        Completed completed = new Completed();
        for (int i = 0; i < 50; i++) {
            producer.send(session.createTextMessage("m" + i), completed);
        }
        Wait.until(() -> completed.texts.size() == 50, () -> completed.texts.size() + " completed");
        Check.equal(Room.numbered("m", 0, 50), completed.texts);
    }

    /** close() waits for what is not completed. */
    @Case
    static void completedBeforeClose(Room room) throws Exception {
        JMSContext context = room.context(JMSContext.AUTO_ACKNOWLEDGE);
        Queue queue = context.createQueue(room.name(""));
        Completed completed = new Completed();
        JMSProducer producer = context.createProducer().setAsync(completed);
        for (int i = 0; i < 100; i++) {
            producer.send(queue, "m" + i);
        }
        context.close();
        Check.equal(100, completed.texts.size());
        Check.equal(List.of(), completed.errors);
    }

    @Case
    static void completedInTransaction(Room room) throws Exception {
        Session session = room.session(Session.SESSION_TRANSACTED);
        MessageProducer producer = session.createProducer(room.queue(session));
        Completed completed = new Completed();
        for (int i = 0; i < 20; i++) {
            producer.send(session.createTextMessage("m" + i), completed);
        }
        session.commit();
        Check.equal(20, completed.texts.size());
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(Room.numbered("m", 0, 20), Room.texts(consumer, 20));
        session.commit();
    }
}
