package interop;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueConnection;
import jakarta.jms.QueueReceiver;
import jakarta.jms.QueueSender;
import jakarta.jms.QueueSession;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;

/** Queues: every message to one consumer. JMS 1.1, chapter 5. */
final class Queues {
    private Queues() {}

    @Case
    static void inOrder(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        MessageProducer producer = session.createProducer(room.queue(session));
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        for (int i = 0; i < 3000; i++) {
            producer.send(session.createTextMessage("m" + i));
        }
        Check.equal(Room.numbered("m", 0, 3000), Room.texts(consumer, 3000));
    }

    @Case
    static void waitForALateConsumer(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "waits");
        connection.close();
        Session later = room.session();
        Room.expect(later.createConsumer(room.queue(later)), "waits");
    }

    @Case
    static void eachToOneConsumer(Room room) throws Exception {
        Session one = room.session();
        Session two = room.session();
        List<String> first = new CopyOnWriteArrayList<>();
        List<String> second = new CopyOnWriteArrayList<>();
        AtomicInteger count = new AtomicInteger();
        one.createConsumer(room.queue(one)).setMessageListener(m -> note(first, count, m));
        two.createConsumer(room.queue(two)).setMessageListener(m -> note(second, count, m));
        Session sender = room.session();
        Room.send(sender, room.queue(sender), "m", 200);
        Wait.until(() -> count.get() == 200, () -> count + " of 200 came");
        Set<String> all = new HashSet<>(first);
        all.addAll(second);
        Check.equal(200, all.size());
        Check.that(first.size() > 20 && second.size() > 20, first.size() + " and " + second.size());
    }

    private static void note(List<String> texts, AtomicInteger count, Message message) {
        try {
            texts.add(((TextMessage) message).getText());
            count.incrementAndGet();
        } catch (jakarta.jms.JMSException error) {
            throw new AssertionError(error);
        }
    }

    @Case
    static void receiveWithoutWaiting(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Check.equal(null, consumer.receiveNoWait());
        long before = System.nanoTime();
        Check.equal(null, consumer.receive(200));
        Check.that(System.nanoTime() - before >= 190_000_000L, "receive(200) came back early");
        Room.send(session, room.queue(session), "x");
        Wait.until(() -> consumer.receiveNoWait() != null, () -> "receiveNoWait finds nothing");
    }

    /** A consumer that waits when the message is sent. */
    @Case
    static void waitingReceiver(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        String[] got = new String[1];
        Thread reader =
                new Thread(
                        () -> {
                            try {
                                got[0] = Room.text(consumer);
                            } catch (jakarta.jms.JMSException error) {
                                got[0] = error.toString();
                            }
                        });
        reader.start();
        Session other = room.session();
        Room.send(other, room.queue(other), "wakes");
        reader.join(Room.SOON);
        Check.equal("wakes", got[0]);
    }

    @Case
    static void producerWithoutDestination(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(null);
        for (int i = 0; i < 5; i++) {
            Queue queue = session.createQueue(room.name("q" + i));
            producer.send(queue, session.createTextMessage("to " + i));
            producer.send(queue, session.createTextMessage("again"));
        }
        for (int i = 0; i < 5; i++) {
            Queue queue = session.createQueue(room.name("q" + i));
            Room.expect(session.createConsumer(queue), "to " + i, "again");
        }
        Check.thrown(
                UnsupportedOperationException.class,
                () -> producer.send(session.createTextMessage("where?")));
    }

    /** A queue and a topic of the same name have nothing to do with each other. */
    @Case
    static void notTheTopicOfThatName(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer ofTopic = session.createConsumer(room.topic(session));
        Room.send(session, room.queue(session), "queue");
        Room.nothing(ofTopic);
        Room.send(session, room.topic(session), "topic");
        Room.expect(ofTopic, "topic");
        Room.expect(session.createConsumer(room.queue(session)), "queue");
    }

    /** The interfaces of JMS 1.0.2. */
    @Case
    static void olderInterfaces(Room room) throws Exception {
        QueueConnection connection = room.keep(room.queues().createQueueConnection());
        QueueSession session = connection.createQueueSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(room.name(""));
        QueueSender sender = session.createSender(queue);
        QueueReceiver receiver = session.createReceiver(queue);
        connection.start();
        sender.send(session.createTextMessage("old"));
        Room.expect(receiver, "old");
        Check.equal(queue.getQueueName(), receiver.getQueue().getQueueName());
    }

    /** Eight senders and eight receivers, each a connection of its own: none lost, none twice. */
    @Case
    static void manyAtOnce(Room room) throws Exception {
        int pairs = 8;
        int each = 100;
        Set<String> seen = java.util.concurrent.ConcurrentHashMap.newKeySet();
        AtomicInteger count = new AtomicInteger();
        for (int i = 0; i < pairs; i++) {
            Session session = room.session();
            session.createConsumer(room.queue(session))
                    .setMessageListener(
                            message -> {
                                try {
                                    seen.add(((TextMessage) message).getText());
                                    count.incrementAndGet();
                                } catch (jakarta.jms.JMSException error) {
                                    throw new AssertionError(error);
                                }
                            });
        }
        Thread[] senders = new Thread[pairs];
        for (int i = 0; i < pairs; i++) {
            Session session = room.session();
            String text = "sender" + i + " ";
            senders[i] =
                    new Thread(
                            () -> {
                                try {
                                    Room.send(session, room.queue(session), text, each);
                                } catch (jakarta.jms.JMSException error) {
                                    throw new AssertionError(error);
                                }
                            });
            senders[i].start();
        }
        for (Thread sender : senders) {
            sender.join();
        }
        Wait.until(() -> seen.size() == pairs * each, () -> seen.size() + " came");
        Check.equal(pairs * each, count.get());
    }

    @Case
    static void selectorsDivide(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer even = session.createConsumer(room.queue(session), "n IN ('0', '2', '4')");
        MessageConsumer odd = session.createConsumer(room.queue(session), "n IN ('1', '3', '5')");
        MessageProducer producer = session.createProducer(room.queue(session));
        for (int i = 0; i < 6; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setStringProperty("n", "" + i);
            producer.send(message);
        }
        Room.expect(even, "m0", "m2", "m4");
        Room.expect(odd, "m1", "m3", "m5");
    }

    /** What no selector takes waits for somebody who wants it. */
    @Case
    static void unselectedWaits(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer picky = session.createConsumer(room.queue(session), "colour = 'red'");
        MessageProducer producer = session.createProducer(room.queue(session));
        for (int i = 0; i < 1200; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setStringProperty("colour", i % 400 == 399 ? "red" : "blue");
            producer.send(message, DeliveryMode.NON_PERSISTENT, 4, 0);
        }
        Room.expect(picky, "m399", "m799", "m1199");
        Room.nothing(picky);
        picky.close();
        MessageConsumer all = session.createConsumer(room.queue(session));
        Room.expect(all, "m0", "m1");
    }
}
