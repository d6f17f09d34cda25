package interop;

import jakarta.jms.BytesMessage;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageEOFException;
import jakarta.jms.MessageFormatException;
import jakarta.jms.MessageNotWriteableException;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import java.io.Serializable;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Date;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;

/** The six kinds of message, there and back unchanged. JMS 1.1, section 3.11. */
final class Messages {
    private Messages() {}

    private static Message through(Room room, Session session, Message message) throws Exception {
        MessageProducer producer = session.createProducer(room.queue(session));
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        producer.send(message);
        return Room.receive(consumer);
    }

    private static String textThrough(Room room, String text) throws Exception {
        Session session = room.session();
        Message message = through(room, session, session.createTextMessage(text));
        Check.that(message instanceof TextMessage, "not a TextMessage: " + message.getClass());
        return ((TextMessage) message).getText();
    }

    @Case
    static void text(Room room) throws Exception {
        Check.equal("hello", textThrough(room, "hello"));
    }

    @Case
    static void textNull(Room room) throws Exception {
        Check.equal(null, textThrough(room, null));
    }

    /** An empty body stands for null as well as for "", so that either may come. */
    @Case
    static void textEmpty(Room room) throws Exception {
        String text = textThrough(room, "");
        Check.that(text == null || text.isEmpty(), "got " + text);
    }

    @Case
    static void textUnicode(Room room) throws Exception {
        String text = "Übergröße\u0000 \u07ff \u0800 \u4e2d\u6587 \uffff \ud83d\ude00 \ud834\udd1e\r\n\t";
        Check.equal(text, textThrough(room, text));
    }

    @Case
    static void textLarge(Room room) throws Exception {
        StringBuilder text = new StringBuilder();
        while (text.length() < 9_000_000) {
            text.append("line ").append(text.length()).append(" \u00e4\n");
        }
        Check.that(text.toString().equals(textThrough(room, text.toString())), "texts differ");
    }

    /** A text longer than what one UTF record of Java takes. */
    @Case
    static void textOfManyLengths(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        for (int power = 0; power <= 20; power++) {
            for (int length = (1 << power) - 1; length <= (1 << power) + 1; length++) {
                String text = "x".repeat(length) + "y";
                producer.send(session.createTextMessage(text));
                Check.equal(text, Room.text(consumer));
            }
        }
    }

    @Case
    static void bytesOfEveryType(Room room) throws Exception {
        Session session = room.session();
        BytesMessage sent = session.createBytesMessage();
        sent.writeBoolean(true);
        sent.writeByte((byte) -7);
        sent.writeShort((short) -30_000);
        sent.writeChar('\u20ac');
        sent.writeInt(Integer.MIN_VALUE);
        sent.writeLong(Long.MAX_VALUE);
        sent.writeFloat(1.5f);
        sent.writeDouble(-Math.PI);
        sent.writeUTF("na\u00efve");
        sent.writeBytes(new byte[] {1, 2, 3});
        BytesMessage got = (BytesMessage) through(room, session, sent);
        Check.equal(true, got.readBoolean());
        Check.equal((byte) -7, got.readByte());
        Check.equal((short) -30_000, got.readShort());
        Check.equal('\u20ac', got.readChar());
        Check.equal(Integer.MIN_VALUE, got.readInt());
        Check.equal(Long.MAX_VALUE, got.readLong());
        Check.equal(1.5f, got.readFloat());
        Check.equal(-Math.PI, got.readDouble());
        Check.equal("na\u00efve", got.readUTF());
        byte[] rest = new byte[4];
        Check.equal(3, got.readBytes(rest));
        Check.equal((byte) 3, rest[2]);
        Check.equal(-1, got.readBytes(rest));
        Check.thrown(MessageEOFException.class, got::readByte);
    }

    @Case
    static void bytesEmpty(Room room) throws Exception {
        Session session = room.session();
        BytesMessage got = (BytesMessage) through(room, session, session.createBytesMessage());
        Check.equal(0L, got.getBodyLength());
    }

    @Case
    static void bytesOfEveryValue(Room room) throws Exception {
        Session session = room.session();
        byte[] all = new byte[256];
        for (int i = 0; i < all.length; i++) {
            all[i] = (byte) i;
        }
        BytesMessage sent = session.createBytesMessage();
        sent.writeBytes(all);
        BytesMessage got = (BytesMessage) through(room, session, sent);
        byte[] body = new byte[256];
        Check.equal(256, got.readBytes(body));
        Check.equal(all, body);
    }

    @Case
    static void bytesLarge(Room room) throws Exception {
        Session session = room.session();
        byte[] body = new byte[10_000_000];
        new Random(7).nextBytes(body);
        BytesMessage sent = session.createBytesMessage();
        sent.writeBytes(body);
        BytesMessage got = (BytesMessage) through(room, session, sent);
        Check.equal((long) body.length, got.getBodyLength());
        byte[] back = new byte[body.length];
        Check.equal(back.length, got.readBytes(back));
        Check.that(java.util.Arrays.equals(body, back), "bodies differ");
    }

    @Case
    static void map(Room room) throws Exception {
        Session session = room.session();
        MapMessage sent = session.createMapMessage();
        sent.setBoolean("boolean", true);
        sent.setByte("byte", (byte) 12);
        sent.setShort("short", (short) -1234);
        sent.setChar("char", 'z');
        sent.setInt("int", 123_456);
        sent.setLong("long", 1L << 60);
        sent.setFloat("float", 0.25f);
        sent.setDouble("double", 1e300);
        sent.setString("string", "text \u00fc");
        sent.setBytes("bytes", new byte[] {9, 8, 7});
        sent.setObject("object", 5L);
        MapMessage got = (MapMessage) through(room, session, sent);
        Set<Object> names = new HashSet<>(Collections.list(got.getMapNames()));
        Check.equal(
                Set.of("boolean", "byte", "short", "char", "int", "long", "float", "double",
                        "string", "bytes", "object"),
                names);
        Check.equal(true, got.getObject("boolean"));
        Check.equal((byte) 12, got.getObject("byte"));
        Check.equal((short) -1234, got.getObject("short"));
        Check.equal('z', got.getObject("char"));
        Check.equal(123_456, got.getObject("int"));
        Check.equal(1L << 60, got.getObject("long"));
        Check.equal(0.25f, got.getObject("float"));
        Check.equal(1e300, got.getObject("double"));
        Check.equal("text \u00fc", got.getObject("string"));
        Check.equal(new byte[] {9, 8, 7}, got.getBytes("bytes"));
        Check.equal(5L, got.getObject("object"));
        Check.that(got.itemExists("int") && !got.itemExists("other"), "itemExists");
    }

    /** JMS 1.1, section 3.11.3: a value may be read as some other types. */
    @Case
    static void mapConversions(Room room) throws Exception {
        Session session = room.session();
        MapMessage sent = session.createMapMessage();
        sent.setByte("byte", (byte) 12);
        sent.setString("number", "77");
        sent.setString("truth", "true");
        sent.setInt("int", 5);
        MapMessage got = (MapMessage) through(room, session, sent);
        Check.equal(12L, got.getLong("byte"));
        Check.equal("12", got.getString("byte"));
        Check.equal(77, got.getInt("number"));
        Check.equal(77.0, got.getDouble("number"));
        Check.equal(true, got.getBoolean("truth"));
        Check.equal(null, got.getString("absent"));
        Check.thrown(MessageFormatException.class, () -> got.getShort("int"));
        Check.thrown(MessageFormatException.class, () -> got.getChar("number"));
    }

    @Case
    static void mapEmpty(Room room) throws Exception {
        Session session = room.session();
        MapMessage got = (MapMessage) through(room, session, session.createMapMessage());
        Check.that(!got.getMapNames().hasMoreElements(), "the map is not empty");
    }

    @Case
    static void mapWithNull(Room room) throws Exception {
        Session session = room.session();
        MapMessage sent = session.createMapMessage();
        sent.setString("nothing", null);
        sent.setBytes("no bytes", null);
        MapMessage got = (MapMessage) through(room, session, sent);
        Check.that(got.itemExists("nothing"), "the item is gone");
        Check.equal(null, got.getObject("nothing"));
        Check.equal(null, got.getBytes("no bytes"));
    }

    @Case
    static void mapOfThousands(Room room) throws Exception {
        Session session = room.session();
        MapMessage sent = session.createMapMessage();
        for (int i = 0; i < 5000; i++) {
            sent.setInt("item " + i, i);
        }
        MapMessage got = (MapMessage) through(room, session, sent);
        for (int i = 0; i < 5000; i++) {
            Check.equal(i, got.getInt("item " + i));
        }
    }

    @Case
    static void stream(Room room) throws Exception {
        Session session = room.session();
        StreamMessage sent = session.createStreamMessage();
        sent.writeBoolean(false);
        sent.writeByte((byte) 1);
        sent.writeShort((short) 2);
        sent.writeChar('c');
        sent.writeInt(3);
        sent.writeLong(4);
        sent.writeFloat(5.5f);
        sent.writeDouble(6.25);
        sent.writeString("seven");
        sent.writeBytes(new byte[] {8, 8});
        sent.writeObject(null);
        sent.writeString("");
        StreamMessage got = (StreamMessage) through(room, session, sent);
        Check.equal(false, got.readBoolean());
        Check.equal((byte) 1, got.readByte());
        Check.equal((short) 2, got.readShort());
        Check.equal('c', got.readChar());
        Check.equal(3, got.readInt());
        Check.equal(4L, got.readLong());
        Check.equal(5.5f, got.readFloat());
        Check.equal(6.25, got.readDouble());
        Check.equal("seven", got.readString());
        byte[] bytes = new byte[8];
        Check.equal(2, got.readBytes(bytes));
        Check.equal(null, got.readObject());
        Check.equal("", got.readString());
        Check.thrown(MessageEOFException.class, got::readString);
    }

    @Case
    static void streamConversions(Room room) throws Exception {
        Session session = room.session();
        StreamMessage sent = session.createStreamMessage();
        sent.writeString("31");
        sent.writeInt(12);
        StreamMessage got = (StreamMessage) through(room, session, sent);
        Check.equal((short) 31, got.readShort());
        Check.equal("12", got.readString());
        got.reset();
        Check.equal("31", got.readObject());
    }

    /** Some object of an application. */
    record Order(String article, int count, BigDecimal price) implements Serializable {}

    @Case
    static void object(Room room) throws Exception {
        Session session = room.session();
        ArrayList<Object> content = new ArrayList<>(List.of(1, "two", 3.0, new Date(4)));
        content.add(new Order("pencil", 12, new BigDecimal("0.45")));
        ObjectMessage got = (ObjectMessage) through(room, session, session.createObjectMessage(content));
        Check.equal(content, got.getObject());
    }

    @Case
    static void objectNull(Room room) throws Exception {
        Session session = room.session();
        ObjectMessage got = (ObjectMessage) through(room, session, session.createObjectMessage());
        Check.equal(null, got.getObject());
    }

    @Case
    static void noBody(Room room) throws Exception {
        Session session = room.session();
        Message sent = session.createMessage();
        sent.setStringProperty("only", "properties");
        Message got = through(room, session, sent);
        Check.that(!(got instanceof TextMessage) && !(got instanceof BytesMessage), "it has a body");
        Check.equal("properties", got.getStringProperty("only"));
    }

    /** JMS 1.1, section 3.11.2: what is received can be read only, until it is cleared. */
    @Case
    static void receivedIsReadOnly(Room room) throws Exception {
        Session session = room.session();
        TextMessage sent = session.createTextMessage("one");
        sent.setIntProperty("n", 1);
        TextMessage got = (TextMessage) through(room, session, sent);
        Check.thrown(MessageNotWriteableException.class, () -> got.setText("two"));
        Check.thrown(MessageNotWriteableException.class, () -> got.setIntProperty("n", 2));
        got.clearBody();
        got.setText("two");
        Check.equal("two", got.getText());
        Check.equal(1, got.getIntProperty("n"));
    }

    /** What was received is sent on: same body and properties, another identity. */
    @Case
    static void receivedIsSentOn(Room room) throws Exception {
        Session session = room.session();
        MapMessage sent = session.createMapMessage();
        sent.setString("key", "value");
        sent.setStringProperty("property", "kept");
        sent.setJMSCorrelationID("correlation");
        Message got = through(room, session, sent);
        String identity = got.getJMSMessageID();
        session.createProducer(session.createQueue(room.name("next"))).send(got);
        MessageConsumer next = session.createConsumer(session.createQueue(room.name("next")));
        MapMessage again = (MapMessage) Room.receive(next);
        Check.equal("value", again.getString("key"));
        Check.equal("kept", again.getStringProperty("property"));
        Check.equal("correlation", again.getJMSCorrelationID());
        Check.that(!identity.equals(again.getJMSMessageID()), "the same JMSMessageID twice");
        Check.equal(session.createQueue(room.name("next")), again.getJMSDestination());
    }

    /** JMS 2.0, section 3.11.4. */
    @Case
    static void getBody(Room room) throws Exception {
        Session session = room.session();
        Message got = through(room, session, session.createTextMessage("body"));
        Check.that(got.isBodyAssignableTo(String.class), "it is not assignable to String");
        Check.that(!got.isBodyAssignableTo(byte[].class), "it is assignable to byte[]");
        Check.equal("body", got.getBody(String.class));
    }
}
