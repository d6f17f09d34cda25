package interop;

import com.sun.messaging.ConnectionConfiguration;
import jakarta.jms.Connection;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;

/** What a case has for itself: names nobody else uses, and connections that are closed after it. */
final class Room implements AutoCloseable {
    /** How long something that must come may take. */
    static final long SOON = 60_000;
    /** How long to wait for what must not come. */
    static final long QUIET = 300;

    final String host;
    final int port;
    private final Map<String, String> offered;
    private final String prefix;
    private final Deque<AutoCloseable> open = new ArrayDeque<>();

    Room(String name, String address, Map<String, String> offered) {
        int colon = address.lastIndexOf(':');
        this.host = address.substring(0, colon);
        this.port = Integer.parseInt(address.substring(colon + 1));
        this.offered = offered;
        String run = Long.toString(ThreadLocalRandom.current().nextLong(1L << 40), 36);
        this.prefix = name.replace('.', '_') + "_" + run;
    }

    /** A name for a destination, subscription or client. */
    String name(String suffix) {
        return prefix + suffix;
    }

    /** What follows WHAT= on the command line. */
    String offer(String what) {
        return offered.get(what);
    }

    String url() {
        return "mq://" + host + ":" + port + "/jms";
    }

    /** A factory for this broker; further settings are names and values in turn. */
    com.sun.messaging.ConnectionFactory factory(String... settings) throws JMSException {
        return set(new com.sun.messaging.ConnectionFactory(), settings);
    }

    com.sun.messaging.XAConnectionFactory distributed(String... settings) throws JMSException {
        return set(new com.sun.messaging.XAConnectionFactory(), settings);
    }

    com.sun.messaging.QueueConnectionFactory queues() throws JMSException {
        return set(new com.sun.messaging.QueueConnectionFactory());
    }

    com.sun.messaging.TopicConnectionFactory topics() throws JMSException {
        return set(new com.sun.messaging.TopicConnectionFactory());
    }

    private <F extends com.sun.messaging.BasicConnectionFactory> F set(F factory, String... settings)
            throws JMSException {
        factory.setProperty(ConnectionConfiguration.imqAddressList, url());
        for (int i = 0; i < settings.length; i += 2) {
            factory.setProperty(settings[i], settings[i + 1]);
        }
        return factory;
    }

    /** A started connection. */
    Connection connection(String... settings) throws JMSException {
        Connection connection = stopped(settings);
        connection.start();
        return connection;
    }

    /** A connection that is not started. */
    Connection stopped(String... settings) throws JMSException {
        return keep(factory(settings).createConnection());
    }

    /** A started connection with a client identifier. */
    Connection named(String client) throws JMSException {
        Connection connection = stopped();
        connection.setClientID(client);
        connection.start();
        return connection;
    }

    JMSContext context(int mode) throws JMSException {
        return keep(factory().createContext(mode));
    }

    /** An AUTO_ACKNOWLEDGE session of a started connection of its own. */
    Session session(String... settings) throws JMSException {
        return connection(settings).createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    Session session(int mode) throws JMSException {
        return connection().createSession(mode == Session.SESSION_TRANSACTED, mode);
    }

    /** Closed when the case is over, unless it was before. */
    <C extends AutoCloseable> C keep(C closeable) {
        open.push(closeable);
        return closeable;
    }

    Queue queue(Session session) throws JMSException {
        return session.createQueue(name(""));
    }

    Topic topic(Session session) throws JMSException {
        return session.createTopic(name(""));
    }

    /** Texts prefix0, prefix1, ... to the destination. */
    static void send(Session session, jakarta.jms.Destination to, String text, int count)
            throws JMSException {
        MessageProducer producer = session.createProducer(to);
        for (int i = 0; i < count; i++) {
            producer.send(session.createTextMessage(text + i));
        }
        producer.close();
    }

    static void send(Session session, jakarta.jms.Destination to, String... texts)
            throws JMSException {
        MessageProducer producer = session.createProducer(to);
        for (String text : texts) {
            producer.send(session.createTextMessage(text));
        }
        producer.close();
    }

    /** The next message, which must come. */
    static Message receive(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(SOON);
        Check.that(message != null, "no message came within " + SOON / 1000 + " s");
        return message;
    }

    static String text(MessageConsumer consumer) throws JMSException {
        return ((TextMessage) receive(consumer)).getText();
    }

    static List<String> texts(MessageConsumer consumer, int count) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message message = consumer.receive(SOON);
            Check.that(message != null, "only " + texts + " came of " + count);
            texts.add(((TextMessage) message).getText());
        }
        return texts;
    }

    /** What `send` with a count has sent, from `first` on. */
    static List<String> numbered(String text, int first, int end) {
        List<String> texts = new ArrayList<>();
        for (int i = first; i < end; i++) {
            texts.add(text + i);
        }
        return texts;
    }

    static void expect(MessageConsumer consumer, String... texts) throws JMSException {
        Check.equal(Arrays.asList(texts), texts(consumer, texts.length));
    }

    static void nothing(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(QUIET);
        Check.that(message == null, "no message was expected, but this came: " + message);
    }

    /** The port of the service itself, from the port mapper. */
    int servicePort() throws Exception {
        try (Socket socket = new Socket(host, port)) {
            socket.getOutputStream().write("101\n".getBytes(StandardCharsets.US_ASCII));
            BufferedReader lines =
                    new BufferedReader(
                            new InputStreamReader(socket.getInputStream(), StandardCharsets.US_ASCII));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] fields = line.split(" ");
                if (fields.length >= 4 && fields[0].equals("jms") && fields[2].equals("NORMAL")) {
                    return Integer.parseInt(fields[3]);
                }
            }
        }
        throw new AssertionError("the port mapper names no service jms");
    }

    /** Closes the connections so far without waiting: it takes 3 s once the broker was killed. */
    void closeInBackground() {
        Deque<AutoCloseable> closing = new ArrayDeque<>(open);
        open.clear();
        Thread thread = new Thread(() -> closeAll(closing));
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void close() {
        closeAll(open);
    }

    private static void closeAll(Deque<AutoCloseable> open) {
        for (AutoCloseable each : open) {
            try {
                each.close();
            } catch (Exception error) {
                // the case may have closed it, or killed the broker
            }
        }
    }
}
