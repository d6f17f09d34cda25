package interop;

import jakarta.jms.Connection;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import jakarta.jms.TopicConnection;
import jakarta.jms.TopicPublisher;
import jakarta.jms.TopicSession;
import jakarta.jms.TopicSubscriber;
import java.util.HashSet;
import java.util.Set;

/** Topics, durable subscriptions, names with wildcards. JMS 1.1, chapter 6. */
final class Topics {
    private Topics() {}

    private static Session of(Connection connection) throws JMSException {
        return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    @Case
    static void everyConsumerGetsAll(Room room) throws Exception {
        Session[] sessions = {room.session(), room.session(), room.session()};
        MessageConsumer[] consumers = new MessageConsumer[3];
        for (int i = 0; i < 3; i++) {
            consumers[i] = sessions[i].createConsumer(room.topic(sessions[i]));
        }
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "m", 100);
        for (MessageConsumer consumer : consumers) {
            Check.equal(Room.numbered("m", 0, 100), Room.texts(consumer, 100));
        }
    }

    @Case
    static void nothingFromBefore(Room room) throws Exception {
        Session session = room.session();
        Room.send(session, room.topic(session), "before");
        MessageConsumer consumer = session.createConsumer(room.topic(session));
        Room.send(session, room.topic(session), "after");
        Room.expect(consumer, "after");
        Room.nothing(consumer);
    }

    @Case
    static void noLocal(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = of(connection);
        MessageConsumer consumer = session.createConsumer(room.topic(session), null, true);
        MessageConsumer all = session.createConsumer(room.topic(session), null, false);
        Session same = of(connection);
        Room.send(same, room.topic(same), "own");
        Session other = room.session();
        Room.send(other, room.topic(other), "foreign");
        Room.expect(consumer, "foreign");
        Room.nothing(consumer);
        Room.expect(all, "own", "foreign");
    }

    @Case
    static void noLocalWithSelector(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = of(connection);
        MessageConsumer consumer = session.createConsumer(room.topic(session), "JMSType = 'a'", true);
        Session other = room.session();
        for (Session sender : new Session[] {session, other}) {
            MessageProducer producer = sender.createProducer(room.topic(sender));
            for (String type : new String[] {"a", "b"}) {
                TextMessage message = sender.createTextMessage(sender == other ? "foreign" : "own");
                message.setJMSType(type);
                producer.send(message);
            }
        }
        Room.expect(consumer, "foreign");
        Room.nothing(consumer);
    }

    @Case
    static void olderInterfaces(Room room) throws Exception {
        TopicConnection connection = room.keep(room.topics().createTopicConnection());
        TopicSession session = connection.createTopicSession(false, Session.AUTO_ACKNOWLEDGE);
        Topic topic = session.createTopic(room.name(""));
        TopicSubscriber subscriber = session.createSubscriber(topic);
        TopicPublisher publisher = session.createPublisher(topic);
        connection.start();
        publisher.publish(session.createTextMessage("old"));
        Room.expect(subscriber, "old");
        Check.equal(false, subscriber.getNoLocal());
    }

    @Case
    static void durableCollectsWhileAway(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = of(connection);
        MessageConsumer consumer = session.createDurableSubscriber(room.topic(session), "durable");
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "here");
        Room.expect(consumer, "here");
        connection.close();
        Room.send(sender, room.topic(sender), "away", 3);
        Connection back = room.named(room.name("client"));
        Session again = of(back);
        MessageConsumer same = again.createDurableSubscriber(room.topic(again), "durable");
        Room.expect(same, "away0", "away1", "away2");
        Room.nothing(same);
        same.close();
        again.unsubscribe("durable");
    }

    @Case
    static void durableUnacknowledgedComesAgain(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = session.createDurableSubscriber(room.topic(session), "durable");
        Session sender = room.session();
        Room.send(sender, room.topic(sender), "m", 3);
        Room.expect(consumer, "m0", "m1");
        consumer.close();
        session.close();
        Session again = of(connection);
        MessageConsumer same = again.createDurableSubscriber(room.topic(again), "durable");
        for (int i = 0; i < 3; i++) {
            Message got = Room.receive(same);
            Check.equal("m" + i, ((TextMessage) got).getText());
            Check.equal(i < 2, got.getJMSRedelivered());
        }
        same.close();
        again.unsubscribe("durable");
    }

    @Case
    static void unsubscribeForgets(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = of(connection);
        session.createDurableSubscriber(room.topic(session), "durable").close();
        Room.send(session, room.topic(session), "forgotten");
        session.unsubscribe("durable");
        MessageConsumer anew = session.createDurableSubscriber(room.topic(session), "durable");
        Room.nothing(anew);
        anew.close();
        session.unsubscribe("durable");
        Check.thrown(InvalidDestinationException.class, () -> session.unsubscribe("durable"));
    }

    @Case
    static void unsubscribeWhileActive(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = of(connection);
        MessageConsumer consumer = session.createDurableSubscriber(room.topic(session), "durable");
        Check.thrown(JMSException.class, () -> session.unsubscribe("durable"));
        Room.send(session, room.topic(session), "still there");
        Room.expect(consumer, "still there");
        consumer.close();
        session.unsubscribe("durable");
    }

    @Case
    static void durableTwiceAtOnce(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = of(connection);
        MessageConsumer first = session.createDurableSubscriber(room.topic(session), "durable");
        Session second = of(connection);
        Check.thrown(
                JMSException.class,
                () -> second.createDurableSubscriber(room.topic(second), "durable"));
        first.close();
        second.createDurableSubscriber(room.topic(second), "durable").close();
        second.unsubscribe("durable");
    }

    /** JMS 1.1, section 6.11.1: another selector is another subscription in place of the first. */
    @Case
    static void durableWithAnotherSelector(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = of(connection);
        session.createDurableSubscriber(room.topic(session), "durable", "n < 5", false).close();
        MessageProducer producer = session.createProducer(room.topic(session));
        for (int i = 0; i < 10; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setIntProperty("n", i);
            producer.send(message);
        }
        MessageConsumer other =
                session.createDurableSubscriber(room.topic(session), "durable", "n >= 5", false);
        Room.nothing(other);
        for (int i = 4; i < 6; i++) {
            TextMessage message = session.createTextMessage("later" + i);
            message.setIntProperty("n", i);
            producer.send(message);
        }
        Room.expect(other, "later5");
        other.close();
        session.unsubscribe("durable");
    }

    @Case
    static void durableKeepsItsSelector(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = of(connection);
        session.createDurableSubscriber(room.topic(session), "durable", "n < 2", false).close();
        MessageProducer producer = session.createProducer(room.topic(session));
        for (int i = 0; i < 4; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setIntProperty("n", i);
            producer.send(message);
        }
        MessageConsumer same =
                session.createDurableSubscriber(room.topic(session), "durable", "n < 2", false);
        Room.expect(same, "m0", "m1");
        Room.nothing(same);
        same.close();
        session.unsubscribe("durable");
    }

    @Case
    static void durableOnAnotherTopic(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = of(connection);
        Topic first = session.createTopic(room.name("first"));
        Topic second = session.createTopic(room.name("second"));
        session.createDurableSubscriber(first, "durable").close();
        Room.send(session, first, "dropped");
        MessageConsumer consumer = session.createDurableSubscriber(second, "durable");
        Room.send(session, first, "elsewhere");
        Room.send(session, second, "here");
        Room.expect(consumer, "here");
        Room.nothing(consumer);
        consumer.close();
        session.unsubscribe("durable");
    }

    /** Local is what the same client identifier sent, also on an earlier connection. */
    @Case
    static void durableNoLocal(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = of(connection);
        session.createDurableSubscriber(room.topic(session), "durable", null, true).close();
        Room.send(session, room.topic(session), "own");
        Session other = room.session();
        Room.send(other, room.topic(other), "foreign");
        connection.close();
        Connection back = room.named(room.name("client"));
        Session again = of(back);
        MessageConsumer consumer =
                again.createDurableSubscriber(room.topic(again), "durable", null, true);
        Room.expect(consumer, "foreign");
        Room.nothing(consumer);
        consumer.close();
        again.unsubscribe("durable");
    }

    @Case
    static void durableWithoutClientIdentifier(Room room) throws Exception {
        Session session = room.session();
        Check.thrown(
                JMSException.class,
                () -> session.createDurableSubscriber(room.topic(session), "durable"));
        Room.send(session, room.queue(session), "the connection goes on");
        Room.expect(session.createConsumer(room.queue(session)), "the connection goes on");
    }

    /** Names of subscriptions belong to a client identifier. */
    @Case
    static void sameNameOfTwoClients(Room room) throws Exception {
        Session one = of(room.named(room.name("one")));
        Session two = of(room.named(room.name("two")));
        MessageConsumer first = one.createDurableSubscriber(room.topic(one), "durable");
        MessageConsumer second = two.createDurableSubscriber(room.topic(two), "durable");
        Room.send(one, room.topic(one), "for both");
        Room.expect(first, "for both");
        Room.expect(second, "for both");
        first.close();
        second.close();
        one.unsubscribe("durable");
        two.unsubscribe("durable");
    }

    /** JMS 2.0, section 8.3.3. */
    @Case
    static void durableConsumer(Room room) throws Exception {
        Connection connection = room.named(room.name("client"));
        Session session = of(connection);
        session.createDurableConsumer(room.topic(session), "durable").close();
        Room.send(session, room.topic(session), "m", 2);
        MessageConsumer consumer = session.createDurableConsumer(room.topic(session), "durable");
        Room.expect(consumer, "m0", "m1");
        consumer.close();
        session.unsubscribe("durable");
    }

    /** `*` is one part of a name, `**` one or more. */
    @Case
    static void wildcardConsumers(Room room) throws Exception {
        Session session = room.session();
        String root = room.name("");
        MessageConsumer one = session.createConsumer(session.createTopic(root + ".*.price"));
        MessageConsumer rest = session.createConsumer(session.createTopic(root + ".**"));
        for (String name : new String[] {"", ".a.price", ".b.price", ".a.volume", ".a.b.price"}) {
            Room.send(session, session.createTopic(root + name), name);
        }
        Room.expect(one, ".a.price", ".b.price");
        Room.nothing(one);
        Check.equal(
                Set.of(".a.price", ".b.price", ".a.volume", ".a.b.price"),
                new HashSet<>(Room.texts(rest, 4)));
        Room.nothing(rest);
        Room.send(session, session.createTopic(root + ".c.price"), "which");
        Message got = Room.receive(one);
        Check.equal(root + ".c.price", ((Topic) got.getJMSDestination()).getTopicName());
    }

    /** What is sent to a wildcard goes to the topics that exist. */
    @Case
    static void wildcardProducer(Room room) throws Exception {
        Session session = room.session();
        String root = room.name("");
        MessageConsumer one = session.createConsumer(session.createTopic(root + ".one"));
        MessageConsumer two = session.createConsumer(session.createTopic(root + ".two"));
        MessageConsumer deep = session.createConsumer(session.createTopic(root + ".three.deep"));
        Room.send(session, session.createTopic(root + ".*"), "to all");
        Room.expect(one, "to all");
        Room.expect(two, "to all");
        Room.nothing(deep);
    }

    @Case
    static void durableOnWildcard(Room room) throws Exception {
        Session session = of(room.named(room.name("client")));
        Topic all = session.createTopic(room.name("") + ".*");
        Topic first = session.createTopic(room.name("") + ".first");
        Topic second = session.createTopic(room.name("") + ".second");
        session.createConsumer(first);
        session.createDurableSubscriber(all, "durable").close();
        Room.send(session, first, "to the first");
        Room.send(session, second, "to one made later");
        MessageConsumer consumer = session.createDurableSubscriber(all, "durable");
        Check.equal(
                Set.of("to the first", "to one made later"),
                new HashSet<>(Room.texts(consumer, 2)));
        consumer.close();
        session.unsubscribe("durable");
    }

    /** `>` at the end, without a dot, is any rest of a name. */
    @Case
    static void wildcardRest(Room room) throws Exception {
        Session session = room.session();
        String root = room.name("");
        MessageConsumer consumer = session.createConsumer(session.createTopic(root + ".a>"));
        for (String name : new String[] {".a.b", ".b.b", ".a.b.c", ".a"}) {
            Room.send(session, session.createTopic(root + name), name);
        }
        Check.equal(Set.of(".a.b", ".a.b.c", ".a"), new HashSet<>(Room.texts(consumer, 3)));
        Room.nothing(consumer);
    }
}
