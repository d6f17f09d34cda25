package interop;

import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageFormatException;
import jakarta.jms.Session;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;

/** Properties of messages. JMS 1.1, section 3.5. */
final class Properties {
    private Properties() {}

    private static Message through(Room room, Session session, Message message) throws Exception {
        session.createProducer(room.queue(session)).send(message);
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        return Room.receive(consumer);
    }

    @Case
    static void everyType(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createMessage();
        sent.setBooleanProperty("boolean", true);
        sent.setByteProperty("byte", (byte) -128);
        sent.setShortProperty("short", (short) 32_767);
        sent.setIntProperty("int", -5);
        sent.setLongProperty("long", 1L << 40);
        sent.setFloatProperty("float", 2.5f);
        sent.setDoubleProperty("double", 2.0e-9);
        sent.setStringProperty("string", "text");
        sent.setObjectProperty("object", 77L);
        Message got = through(room, session, sent);
        Check.equal(true, got.getObjectProperty("boolean"));
        Check.equal((byte) -128, got.getObjectProperty("byte"));
        Check.equal((short) 32_767, got.getObjectProperty("short"));
        Check.equal(-5, got.getObjectProperty("int"));
        Check.equal(1L << 40, got.getObjectProperty("long"));
        Check.equal(2.5f, got.getObjectProperty("float"));
        Check.equal(2.0e-9, got.getObjectProperty("double"));
        Check.equal("text", got.getObjectProperty("string"));
        Check.equal(77L, got.getObjectProperty("object"));
    }

    /** JMS 1.1, section 3.5.4. */
    @Case
    static void conversions(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createMessage();
        sent.setByteProperty("byte", (byte) 5);
        sent.setStringProperty("number", "-9");
        sent.setStringProperty("fraction", "1.5");
        sent.setStringProperty("truth", "TRUE");
        sent.setLongProperty("long", 8);
        sent.setFloatProperty("float", 0.5f);
        Message got = through(room, session, sent);
        Check.equal((short) 5, got.getShortProperty("byte"));
        Check.equal(5, got.getIntProperty("byte"));
        Check.equal(5L, got.getLongProperty("byte"));
        Check.equal("5", got.getStringProperty("byte"));
        Check.equal((byte) -9, got.getByteProperty("number"));
        Check.equal(-9L, got.getLongProperty("number"));
        Check.equal(1.5, got.getDoubleProperty("fraction"));
        Check.equal(true, got.getBooleanProperty("truth"));
        Check.equal(0.5, got.getDoubleProperty("float"));
        Check.thrown(MessageFormatException.class, () -> got.getIntProperty("long"));
        Check.thrown(MessageFormatException.class, () -> got.getFloatProperty("byte"));
        Check.thrown(NumberFormatException.class, () -> got.getIntProperty("fraction"));
        Check.equal(null, got.getStringProperty("absent"));
        Check.equal(false, got.getBooleanProperty("absent"));
    }

    @Case
    static void names(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createMessage();
        sent.setIntProperty("a", 1);
        sent.setIntProperty("_b$1", 2);
        sent.setIntProperty("\u00e4\u4e2d", 3);
        Message got = through(room, session, sent);
        Set<Object> names = new HashSet<>(Collections.list(got.getPropertyNames()));
        names.removeIf(name -> name.toString().startsWith("JMS"));
        Check.equal(Set.of("a", "_b$1", "\u00e4\u4e2d"), names);
        Check.equal(3, got.getIntProperty("\u00e4\u4e2d"));
        Check.that(got.propertyExists("a") && !got.propertyExists("b"), "propertyExists");
        got.clearProperties();
        Check.that(!got.propertyExists("a"), "clearProperties left one");
    }

    @Case
    static void unicodeAndLong(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createMessage();
        String unicode = "\u00e9\u0000\u20ac\ud83d\ude00";
        sent.setStringProperty("unicode", unicode);
        sent.setStringProperty("empty", "");
        sent.setStringProperty("long", "p".repeat(60_000));
        Message got = through(room, session, sent);
        Check.equal(unicode, got.getStringProperty("unicode"));
        Check.equal("", got.getStringProperty("empty"));
        Check.equal("p".repeat(60_000), got.getStringProperty("long"));
    }

    @Case
    static void extremes(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createMessage();
        sent.setLongProperty("least", Long.MIN_VALUE);
        sent.setLongProperty("most", Long.MAX_VALUE);
        sent.setIntProperty("int", Integer.MIN_VALUE);
        sent.setDoubleProperty("nan", Double.NaN);
        sent.setDoubleProperty("infinite", Double.NEGATIVE_INFINITY);
        sent.setDoubleProperty("tiny", Double.MIN_VALUE);
        sent.setDoubleProperty("minus_zero", -0.0);
        sent.setFloatProperty("float", Float.MAX_VALUE);
        Message got = through(room, session, sent);
        Check.equal(Long.MIN_VALUE, got.getLongProperty("least"));
        Check.equal(Long.MAX_VALUE, got.getLongProperty("most"));
        Check.equal(Integer.MIN_VALUE, got.getIntProperty("int"));
        Check.equal(Double.NaN, got.getDoubleProperty("nan"));
        Check.equal(Double.NEGATIVE_INFINITY, got.getDoubleProperty("infinite"));
        Check.equal(Double.MIN_VALUE, got.getDoubleProperty("tiny"));
        Check.equal(-0.0, got.getDoubleProperty("minus_zero"));
        Check.equal(Float.MAX_VALUE, got.getFloatProperty("float"));
    }

    @Case
    static void hundreds(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createMessage();
        for (int i = 0; i < 500; i++) {
            sent.setStringProperty("property" + i, "value " + i);
        }
        Message got = through(room, session, sent);
        for (int i = 0; i < 500; i++) {
            Check.equal("value " + i, got.getStringProperty("property" + i));
        }
    }

    /** JMS 1.1, section 3.5.9: what the provider sets if it is asked to. */
    @Case
    static void definedByJms(Room room) throws Exception {
        Session session =
                room.session("imqSetJMSXUserID", "true", "imqSetJMSXRcvTimestamp", "true");
        Message sent = session.createMessage();
        sent.setStringProperty("JMSXGroupID", "group");
        sent.setIntProperty("JMSXGroupSeq", 3);
        long before = System.currentTimeMillis();
        Message got = through(room, session, sent);
        Check.equal("group", got.getStringProperty("JMSXGroupID"));
        Check.equal(3, got.getIntProperty("JMSXGroupSeq"));
        Check.equal("guest", got.getStringProperty("JMSXUserID"));
        Check.equal(1, got.getIntProperty("JMSXDeliveryCount"));
        Check.that(got.getLongProperty("JMSXRcvTimestamp") >= before, "JMSXRcvTimestamp");
    }
}
