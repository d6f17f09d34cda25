package interop;

import jakarta.jms.Connection;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;

/** Subscriptions with several consumers: those of JMS 2.0, section 8.3, and shared client identifiers. */
final class Shared {
    private Shared() {}

    private static List<String> collect(MessageConsumer consumer) throws JMSException {
        List<String> texts = new CopyOnWriteArrayList<>();
        consumer.setMessageListener(
                message -> {
                    try {
                        texts.add(((TextMessage) message).getText());
                    } catch (JMSException error) {
                        throw new AssertionError(error);
                    }
                });
        return texts;
    }

    private static void divided(List<String> one, List<String> two, int count) throws Exception {
        Wait.until(
                () -> one.size() + two.size() >= count,
                () -> one.size() + " and " + two.size() + " of " + count);
        Set<String> all = new HashSet<>(one);
        all.addAll(two);
        Check.equal(new HashSet<>(Room.numbered("m", 0, count)), all);
        Check.equal(count, one.size() + two.size());
        Check.that(!one.isEmpty() && !two.isEmpty(), one.size() + " and " + two.size());
    }

    @Case
    static void consumersDivide(Room room) throws Exception {
        Session one = room.session();
        Session two = room.session();
        List<String> first = collect(one.createSharedConsumer(room.topic(one), room.name("s")));
        List<String> second = collect(two.createSharedConsumer(room.topic(two), room.name("s")));
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "m", 100);
        divided(first, second, 100);
    }

    @Case
    static void everySubscriptionGetsAll(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer one = session.createSharedConsumer(room.topic(session), room.name("one"));
        MessageConsumer two = session.createSharedConsumer(room.topic(session), room.name("two"));
        MessageConsumer plain = session.createConsumer(room.topic(session));
        Room.send(session, room.topic(session), "m", 20);
        for (MessageConsumer consumer : new MessageConsumer[] {one, two, plain}) {
            Check.equal(Room.numbered("m", 0, 20), Room.texts(consumer, 20));
        }
    }

    /** A subscription that is not durable ends with its last consumer. */
    @Case
    static void endsWithTheLastConsumer(Room room) throws Exception {
        Session session = room.session();
        session.createSharedConsumer(room.topic(session), room.name("s")).close();
        Room.send(session, room.topic(session), "nobody");
        MessageConsumer anew = session.createSharedConsumer(room.topic(session), room.name("s"));
        Room.nothing(anew);
    }

    @Case
    static void withSelector(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer consumer =
                session.createSharedConsumer(room.topic(session), room.name("s"), "n = 1");
        jakarta.jms.MessageProducer producer = session.createProducer(room.topic(session));
        for (int i = 0; i < 3; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setIntProperty("n", i);
            producer.send(message);
        }
        Room.expect(consumer, "m1");
        Room.nothing(consumer);
    }

    @Case
    static void durableDivides(Room room) throws Exception {
        Session one = room.session();
        Session two = room.session();
        String name = room.name("s");
        MessageConsumer a = one.createSharedDurableConsumer(room.topic(one), name);
        MessageConsumer b = two.createSharedDurableConsumer(room.topic(two), name);
        List<String> first = collect(a);
        List<String> second = collect(b);
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "m", 100);
        divided(first, second, 100);
        a.close();
        b.close();
        one.unsubscribe(name);
    }

    /** It needs no client identifier, and any connection can go on with it. */
    @Case
    static void durableStays(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        String name = room.name("s");
        session.createSharedDurableConsumer(room.topic(session), name);
        connection.close();
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "m", 5);
        Session later = room.session();
        MessageConsumer consumer = later.createSharedDurableConsumer(room.topic(later), name);
        Check.equal(Room.numbered("m", 0, 5), Room.texts(consumer, 5));
        consumer.close();
        later.unsubscribe(name);
        Check.thrown(InvalidDestinationException.class, () -> later.unsubscribe(name));
    }

    /** What one member leaves unacknowledged goes to another. */
    @Case
    static void takesOverFromAnother(Room room) throws Exception {
        String name = room.name("s");
        Connection gone = room.connection();
        Session one = gone.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer first = one.createSharedDurableConsumer(room.topic(one), name);
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "m", 3);
        Room.expect(first, "m0", "m1", "m2");
        Session two = room.session();
        MessageConsumer second = two.createSharedDurableConsumer(room.topic(two), name);
        Room.nothing(second);
        gone.close();
        Room.expect(second, "m0", "m1", "m2");
        second.close();
        two.unsubscribe(name);
    }

    /** While somebody uses it, it is what it is. JMS 2.0, section 8.3.4. */
    @Case
    static void anotherSelectorWhileActive(Room room) throws Exception {
        Session session = room.session();
        String name = room.name("s");
        MessageConsumer consumer = session.createSharedDurableConsumer(room.topic(session), name);
        Check.thrown(
                JMSException.class,
                () -> session.createSharedDurableConsumer(room.topic(session), name, "n = 1"));
        consumer.close();
        session.unsubscribe(name);
    }

    /** Open MQ's own way: connections share a client identifier, and with it their subscriptions. */
    @Case
    static void clientIdentifier(Room room) throws Exception {
        String[] settings = {
            "imqConfiguredClientID", room.name("client"), "imqEnableSharedClientID", "true"
        };
        Session one = room.session(settings);
        Session two = room.session(settings);
        MessageConsumer a = one.createDurableSubscriber(room.topic(one), "durable");
        MessageConsumer b = two.createDurableSubscriber(room.topic(two), "durable");
        List<String> first = collect(a);
        List<String> second = collect(b);
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "m", 60);
        divided(first, second, 60);
        a.close();
        b.close();
        one.unsubscribe("durable");
    }

    /** Only durable subscriptions are shared by it. */
    @Case
    static void clientIdentifierNotDurable(Room room) throws Exception {
        String[] settings = {
            "imqConfiguredClientID", room.name("client"), "imqEnableSharedClientID", "true"
        };
        Session one = room.session(settings);
        Session two = room.session(settings);
        MessageConsumer first = one.createConsumer(room.topic(one));
        MessageConsumer second = two.createConsumer(room.topic(two));
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "m", 20);
        Check.equal(Room.numbered("m", 0, 20), Room.texts(first, 20));
        Check.equal(Room.numbered("m", 0, 20), Room.texts(second, 20));
    }
}
