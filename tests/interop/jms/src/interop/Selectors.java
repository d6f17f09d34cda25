package interop;

import jakarta.jms.InvalidSelectorException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.Set;
import java.util.TreeSet;

/**
 * The language of selectors, JMS 1.1, section 3.8.1. Most cases look with browsers at the same four
 * messages:
 *
 * <pre>
 *      colour  n        price      large  text        JMSType  priority
 * a    red     int 1    double 1.5 true   %off        order    4
 * b    blue    long 2   float 2    false  under_score invoice  7
 * c    it's    short -3                   12          order    4
 * d
 * </pre>
 */
final class Selectors {
    private Selectors() {}

    private static final class Shelf {
        final Session session;
        final Queue queue;

        Shelf(Room room) throws Exception {
            session = room.session();
            queue = room.queue(session);
            MessageProducer producer = session.createProducer(queue);
            Message a = session.createTextMessage("a");
            a.setStringProperty("colour", "red");
            a.setIntProperty("n", 1);
            a.setDoubleProperty("price", 1.5);
            a.setBooleanProperty("large", true);
            a.setStringProperty("text", "%off");
            a.setJMSType("order");
            a.setJMSCorrelationID("17");
            producer.send(a);
            Message b = session.createTextMessage("b");
            b.setStringProperty("colour", "blue");
            b.setLongProperty("n", 2);
            b.setFloatProperty("price", 2);
            b.setBooleanProperty("large", false);
            b.setStringProperty("text", "under_score");
            b.setJMSType("invoice");
            producer.send(b, 1, 7, 0);
            Message c = session.createTextMessage("c");
            c.setStringProperty("colour", "it's");
            c.setShortProperty("n", (short) -3);
            c.setStringProperty("text", "12");
            c.setJMSType("order");
            producer.send(c);
            producer.send(session.createTextMessage("d"));
        }

        /** The selector selects these messages and no others. */
        void check(String selector, String... texts) throws Exception {
            Set<String> found = new TreeSet<>();
            Enumeration<?> messages = session.createBrowser(queue, selector).getEnumeration();
            while (messages.hasMoreElements()) {
                found.add(((TextMessage) messages.nextElement()).getText());
            }
            Set<String> expected = new TreeSet<>(Arrays.asList(texts));
            Check.that(
                    found.equals(expected),
                    selector + " selects " + found + " instead of " + expected);
        }
    }

    @Case
    static void comparisons(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("n = 1", "a");
        shelf.check("n <> 1 AND n IS NOT NULL", "b", "c");
        shelf.check("n > 1", "b");
        shelf.check("n >= 1", "a", "b");
        shelf.check("n < 1", "c");
        shelf.check("n <= 1", "a", "c");
        shelf.check("1 < n", "b");
        shelf.check("colour = 'red'", "a");
        shelf.check("1 = 1", "a", "b", "c", "d");
        shelf.check("1 = 2");
    }

    /** Exact and approximate numbers compare by value. */
    @Case
    static void numbers(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("price = 1.5", "a");
        shelf.check("price = 2", "b");
        shelf.check("n = 2.0", "b");
        shelf.check("n < 1.5", "a", "c");
        shelf.check("price > 15e-1", "b");
        shelf.check("n = -3", "c");
        shelf.check("n = - 3", "c");
        shelf.check("price = .5 + 1.", "a");
    }

    @Case
    static void arithmetic(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("n + 1 = 2", "a");
        shelf.check("n * 2 + 1 = 5", "b");
        shelf.check("1 + n * 2 = 5", "b");
        shelf.check("(1 + n) * 2 = 6", "b");
        shelf.check("price / 3 = 0.5", "a");
        shelf.check("n - -3 = 0", "c");
        shelf.check("-n = 3", "c");
        shelf.check("n - 1 - 1 = 0", "b");
        shelf.check("n * n > price", "b");
    }

    @Case
    static void between(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("n BETWEEN 1 AND 2", "a", "b");
        shelf.check("n IS NOT NULL AND n NOT BETWEEN 1 AND 2", "c");
        shelf.check("price BETWEEN n AND n + 1", "a", "b");
        shelf.check("n BETWEEN 2 AND 1");
    }

    @Case
    static void in(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("colour IN ('red')", "a");
        shelf.check("colour IN ('red', 'blue', 'green')", "a", "b");
        shelf.check("colour IS NOT NULL AND colour NOT IN ('red', 'blue')", "c");
        shelf.check("colour IN ('it''s')", "c");
        shelf.check("JMSType IN ('order', 'offer')", "a", "c");
    }

    @Case
    static void like(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("colour LIKE 'r%'", "a");
        shelf.check("colour LIKE '%e%'", "a", "b");
        shelf.check("colour LIKE '_e_'", "a");
        shelf.check("colour LIKE '____'", "b", "c");
        shelf.check("colour LIKE 'RED'");
        shelf.check("colour NOT LIKE '%e%' AND colour IS NOT NULL", "c");
        shelf.check("colour LIKE '%'", "a", "b", "c");
        shelf.check("colour LIKE 'r.d'");
        shelf.check("colour LIKE 'it''%'", "c");
    }

    @Case
    static void likeWithEscape(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("text LIKE '\\%%' ESCAPE '\\'", "a");
        shelf.check("text LIKE 'under!_%' ESCAPE '!'", "b");
        shelf.check("text LIKE '%!%%' ESCAPE '!'", "a");
        shelf.check("text NOT LIKE '%!_%' ESCAPE '!' AND text IS NOT NULL", "a", "c");
    }

    @Case
    static void isNull(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("colour IS NULL", "d");
        shelf.check("colour IS NOT NULL", "a", "b", "c");
        shelf.check("unheard_of IS NULL", "a", "b", "c", "d");
        shelf.check("JMSCorrelationID IS NOT NULL", "a");
    }

    @Case
    static void logic(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("n = 1 OR n = 2", "a", "b");
        shelf.check("n > 0 AND colour = 'blue'", "b");
        shelf.check("NOT n = 1 AND n IS NOT NULL", "b", "c");
        shelf.check("n = 1 OR n = 2 AND colour = 'red'", "a");
        shelf.check("(n = 1 OR n = 2) AND colour = 'blue'", "b");
        shelf.check("NOT (n = 1 OR n = 2) AND n < 100", "c");
    }

    @Case
    static void booleans(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("large", "a");
        shelf.check("large = TRUE", "a");
        shelf.check("large = FALSE", "b");
        shelf.check("TRUE", "a", "b", "c", "d");
        shelf.check("large OR colour = 'blue'", "a", "b");
    }

    /** What is unknown is neither true nor false, and NOT leaves it unknown. */
    @Case
    static void threeValues(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("NOT (colour = 'red')", "b", "c");
        shelf.check("NOT large", "b");
        shelf.check("large <> TRUE", "b");
        shelf.check("n <> 1", "b", "c");
        shelf.check("n NOT BETWEEN 1 AND 2", "c");
        shelf.check("colour NOT IN ('red', 'blue')", "c");
        shelf.check("colour NOT LIKE '%e%'", "c");
        shelf.check("unheard_of = 1 OR n = 1", "a");
        shelf.check("NOT (unheard_of = 1 AND n = 1)", "b", "c");
        shelf.check("unheard_of <> 1");
        shelf.check("unheard_of = unheard_of");
        shelf.check("n = n", "a", "b", "c");
        shelf.check("unheard_of NOT IN ('x')");
        shelf.check("unheard_of NOT BETWEEN 1 AND 2");
    }

    /** Strings and numbers are never converted. */
    @Case
    static void types(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("text = '12'", "c");
        shelf.check("text = 12");
        shelf.check("n = '1'");
        shelf.check("colour = 'RED'");
        shelf.check("large = 'true'");
    }

    @Case
    static void headers(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("JMSType = 'order'", "a", "c");
        shelf.check("JMSPriority > 5", "b");
        shelf.check("JMSCorrelationID = '17'", "a");
        shelf.check("JMSDeliveryMode = 'PERSISTENT'", "a", "c", "d");
        shelf.check("JMSDeliveryMode = 'NON_PERSISTENT'", "b");
        shelf.check("JMSTimestamp > 0", "a", "b", "c", "d");
        shelf.check("JMSTimestamp > 99999999999999");
        shelf.check("JMSMessageID LIKE 'ID:%'", "a", "b", "c", "d");
    }

    @Case
    static void identity(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        Message[] sent = new Message[3];
        for (int i = 0; i < sent.length; i++) {
            sent[i] = session.createTextMessage("m" + i);
            producer.send(sent[i]);
        }
        String selector = "JMSMessageID = '" + sent[1].getJMSMessageID() + "'";
        MessageConsumer consumer = session.createConsumer(room.queue(session), selector);
        Check.equal(selector, consumer.getMessageSelector());
        Room.expect(consumer, "m1");
        Room.nothing(consumer);
    }

    /** Reserved words in any case, any space between, names as in Java. */
    @Case
    static void spelling(Room room) throws Exception {
        Shelf shelf = new Shelf(room);
        shelf.check("n between 1 and 2", "a", "b");
        shelf.check("n>0And\tcolour\n=\r'blue'", "b");
        shelf.check("large = true or Large = True", "a");
        shelf.check("N = 1");
        shelf.check("$x_1 Is Null and _y iS nUlL and n=1", "a");
    }

    @Case
    static void exactIntegers(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        long[] values = {Long.MAX_VALUE, Long.MAX_VALUE - 1, Long.MIN_VALUE + 1, 1L << 53, (1L << 53) + 1};
        for (long value : values) {
            TextMessage message = session.createTextMessage("" + value);
            message.setLongProperty("n", value);
            producer.send(message);
        }
        for (long value : values) {
            MessageConsumer consumer = session.createConsumer(room.queue(session), "n = " + value);
            Room.expect(consumer, "" + value);
            Room.nothing(consumer);
            consumer.close();
        }
    }

    @Case
    static void invalid(Room room) throws Exception {
        Session session = room.session();
        String[] selectors = {
            "n =",
            "= 1",
            "n = = 1",
            "n == 1",
            "n = 1 AND",
            "(n = 1",
            "n = 1)",
            "colour = 'red",
            "colour LIKE 5",
            "n BETWEEN 1",
            "n IN (1, 2)",
            "n IS 5",
            "1n = 2",
            "n != 1",
        };
        for (String selector : selectors) {
            try {
                session.createConsumer(room.queue(session), selector).close();
            } catch (InvalidSelectorException error) {
                continue;
            }
            throw new AssertionError("accepted: " + selector);
        }
        Check.thrown(
                InvalidSelectorException.class,
                () -> session.createConsumer(room.topic(session), "n ="));
    }

    /** What has a value that is neither true nor false; an escape of two characters. */
    @Case
    static void invalidThoughParsed(Room room) throws Exception {
        Session session = room.session();
        for (String selector : new String[] {"'text'", "n + 1", "17", "colour LIKE 'x' ESCAPE 'yy'"}) {
            Check.thrown(
                    InvalidSelectorException.class,
                    () -> session.createConsumer(room.queue(session), selector).close());
        }
    }

    @Case
    static void onTopic(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer red = session.createConsumer(room.topic(session), "colour = 'red'");
        MessageConsumer blue = session.createConsumer(room.topic(session), "colour = 'blue' AND n > 3");
        MessageConsumer all = session.createConsumer(room.topic(session), "");
        MessageProducer producer = session.createProducer(room.topic(session));
        for (int i = 0; i < 6; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setStringProperty("colour", i % 2 == 0 ? "red" : "blue");
            message.setIntProperty("n", i);
            producer.send(message);
        }
        Room.expect(red, "m0", "m2", "m4");
        Room.expect(blue, "m5");
        Room.expect(all, "m0", "m1", "m2", "m3", "m4", "m5");
        Room.nothing(blue);
    }

    @Case
    static void definedByJms(Room room) throws Exception {
        Session session = room.session();
        MessageProducer producer = session.createProducer(room.queue(session));
        for (int i = 0; i < 4; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setStringProperty("JMSXGroupID", "group" + i % 2);
            producer.send(message);
        }
        MessageConsumer consumer =
                session.createConsumer(room.queue(session), "JMSXGroupID = 'group1'");
        Room.expect(consumer, "m1", "m3");
        Room.nothing(consumer);
    }

    @Case
    static void manyOnTopic(Room room) throws Exception {
        Session session = room.session();
        MessageConsumer[] consumers = new MessageConsumer[200];
        for (int i = 0; i < consumers.length; i++) {
            String selector = "key = 'k" + i + "' AND n >= " + i % 3;
            consumers[i] = session.createConsumer(room.topic(session), selector);
        }
        MessageProducer producer = session.createProducer(room.topic(session));
        for (int i = 0; i < consumers.length; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setStringProperty("key", "k" + i);
            message.setIntProperty("n", 1);
            producer.send(message);
        }
        for (int i = 0; i < consumers.length; i++) {
            if (i % 3 < 2) {
                Room.expect(consumers[i], "m" + i);
            } else {
                Check.equal(null, consumers[i].receiveNoWait());
            }
        }
    }
}
