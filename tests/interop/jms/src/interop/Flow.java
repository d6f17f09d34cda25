package interop;

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.HashSet;
import java.util.Set;

/** Who sends how much before he must wait; and bodies that are compressed. */
final class Flow {
    private Flow() {}

    private static void flood(Session session, jakarta.jms.Destination to, int count) throws Exception {
        MessageProducer producer = session.createProducer(to);
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        for (int i = 0; i < count; i++) {
            producer.send(session.createTextMessage("m" + i));
        }
        producer.close();
    }

    @Case
    static void smallConsumerLimit(Room room) throws Exception {
        Session session = room.session("imqConsumerFlowLimit", "4");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Session sender = room.session();
        flood(sender, room.queue(sender), 500);
        Check.equal(Room.numbered("m", 0, 500), Room.texts(consumer, 500));
    }

    @Case
    static void consumerLimitOfOne(Room room) throws Exception {
        Session session = room.session("imqConsumerFlowLimit", "1", "imqConsumerFlowThreshold", "0");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Session sender = room.session();
        flood(sender, room.queue(sender), 200);
        Check.equal(Room.numbered("m", 0, 200), Room.texts(consumer, 200));
    }

    @Case
    static void onTopic(Room room) throws Exception {
        Session session = room.session("imqConsumerFlowLimit", "7");
        MessageConsumer consumer = session.createConsumer(room.topic(session));
        Session sender = room.session();
        flood(sender, room.topic(sender), 500);
        Check.equal(Room.numbered("m", 0, 500), Room.texts(consumer, 500));
    }

    /** The broker sends only what is asked for. */
    @Case
    static void withoutPrefetch(Room room) throws Exception {
        String[] settings = {"imqConsumerFlowLimitPrefetch", "false"};
        Session one = room.session(settings);
        Session two = room.session(settings);
        Room.send(one, room.queue(one), "m", 20);
        MessageConsumer first = one.createConsumer(room.queue(one));
        MessageConsumer second = two.createConsumer(room.queue(two));
        Set<String> all = new HashSet<>();
        for (int i = 0; i < 10; i++) {
            all.add(Room.text(first));
            all.add(Room.text(second));
        }
        Check.equal(20, all.size());
        Check.equal(null, first.receiveNoWait());
    }

    /** A consumer that takes nothing holds back nobody else on its connection. */
    @Case
    static void slowConsumerBesideAnother(Room room) throws Exception {
        Connection connection = room.connection("imqConsumerFlowLimit", "10");
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue slow = session.createQueue(room.name("slow"));
        Queue fast = session.createQueue(room.name("fast"));
        MessageConsumer lazy = session.createConsumer(slow);
        Session second = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer busy = second.createConsumer(fast);
        Session sender = room.session();
        flood(sender, slow, 2000);
        flood(sender, fast, 300);
        Check.equal(Room.numbered("m", 0, 300), Room.texts(busy, 300));
        Check.equal(Room.numbered("m", 0, 2000), Room.texts(lazy, 2000));
    }

    /** The rest of a queue goes to a second consumer while the first one's buffer is full. */
    @Case
    static void fullBufferLeavesTheRest(Room room) throws Exception {
        Session one = room.session("imqConsumerFlowLimit", "5");
        MessageConsumer first = one.createConsumer(room.queue(one));
        Session sender = room.session();
        flood(sender, room.queue(sender), 100);
        Session two = room.session();
        MessageConsumer second = two.createConsumer(room.queue(two));
        Set<String> all = new HashSet<>(Room.texts(second, 95));
        Room.nothing(second);
        all.addAll(Room.texts(first, 5));
        Check.equal(100, all.size());
    }

    /** Flow of the whole connection: the F bit, and resuming without a consumer. */
    @Case
    static void connectionLimit(Room room) throws Exception {
        Session session =
                room.session(
                        "imqConnectionFlowLimitEnabled", "true",
                        "imqConnectionFlowLimit", "20",
                        "imqConnectionFlowCount", "5");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Session sender = room.session();
        flood(sender, room.queue(sender), 500);
        Check.equal(Room.numbered("m", 0, 500), Room.texts(consumer, 500));
    }

    /** More than the broker lets a producer send before it must ask. */
    @Case
    static void producerBeyondItsCredit(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Session sender = room.session();
        flood(sender, room.queue(sender), 5000);
        Check.equal(Room.numbered("m", 0, 5000), Room.texts(consumer, 5000));
    }

    @Case
    static void recoverWithSmallLimit(Room room) throws Exception {
        Connection connection = room.connection("imqConsumerFlowLimit", "3");
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Room.send(session, room.queue(session), "m", 20);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.texts(consumer, 8);
        session.recover();
        Check.equal(Room.numbered("m", 0, 20), Room.texts(consumer, 20));
        session.recover();
        Check.equal(Room.numbered("m", 0, 20), Room.texts(consumer, 20));
    }

    @Case
    static void rollbackWithSmallLimit(Room room) throws Exception {
        Connection connection = room.connection("imqConsumerFlowLimit", "2");
        Session session = connection.createSession(true, 0);
        Room.send(session, room.queue(session), "m", 20);
        session.commit();
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int i = 0; i < 3; i++) {
            Check.equal(Room.numbered("m", 0, 9), Room.texts(consumer, 9));
            session.rollback();
        }
        Check.equal(Room.numbered("m", 0, 20), Room.texts(consumer, 20));
        session.commit();
    }

    @Case
    static void compressedText(Room room) throws Exception {
        Session session = room.session();
        TextMessage sent = session.createTextMessage("compress me ".repeat(10_000));
        sent.setBooleanProperty("JMS_SUN_COMPRESS", true);
        session.createProducer(room.queue(session)).send(sent);
        TextMessage got = (TextMessage) Room.receive(session.createConsumer(room.queue(session)));
        Check.equal(sent.getText(), got.getText());
        Check.equal(120_000, got.getIntProperty("JMS_SUN_UNCOMPRESSED_SIZE"));
        Check.that(got.getIntProperty("JMS_SUN_COMPRESSED_SIZE") < 5000, "it is not compressed");
    }

    @Case
    static void compressedBytesTwice(Room room) throws Exception {
        Session session = room.session(Session.CLIENT_ACKNOWLEDGE);
        BytesMessage sent = session.createBytesMessage();
        sent.writeBytes(new byte[1 << 20]);
        sent.setBooleanProperty("JMS_SUN_COMPRESS", true);
        session.createProducer(room.queue(session)).send(sent);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int i = 0; i < 2; i++) {
            BytesMessage got = (BytesMessage) Room.receive(consumer);
            Check.equal(1L << 20, got.getBodyLength());
            session.recover();
        }
    }
}
