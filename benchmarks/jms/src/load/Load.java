package load;

import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Load on a broker: senders and receivers, each with a connection of its own, at one queue.
 *
 * <pre>Load HOST:PORT [senders=1] [receivers=1] [messages=20000] [warmup=5000] [size=1024]
 *      [mode=persistent|non-persistent] [acknowledge=auto|dups] [queue=load]</pre>
 *
 * A persistent send waits for its answer, so that each sender has one message outstanding. After
 * `warmup` messages, sent and received, come `messages` that are measured. One line of JSON:
 *
 * <pre>
 *   messages, senders, receivers, size, mode, acknowledge   as asked for
 *   seconds         from the first send to the last message received
 *   rate            messages / seconds
 *   send_rate       messages / seconds until the last send had returned
 *   receive_rate    messages / seconds from the first message received to the last
 *   send_us         p50, p99, max of one send, in microseconds
 * </pre>
 */
public final class Load {
    private static final long STALLED_SECONDS = 60;

    private final ConnectionFactory factory = new ConnectionFactory();
    private final String queue;
    private final int size;
    private final int mode;
    private final int acknowledge;
    private final List<Connection> connections = new ArrayList<>();
    private final AtomicLong received = new AtomicLong();
    private volatile long target;
    private volatile long firstReceived;
    private volatile long lastReceived;
    private volatile CountDownLatch done = new CountDownLatch(1);

    private Load(String address, Options options) throws JMSException {
        factory.setProperty(ConnectionConfiguration.imqAddressList, "mq://" + address + "/jms");
        queue = options.text("queue", "load");
        size = options.number("size", 1024);
        boolean persistent = options.text("mode", "persistent").equals("persistent");
        mode = persistent ? DeliveryMode.PERSISTENT : DeliveryMode.NON_PERSISTENT;
        boolean auto = options.text("acknowledge", "auto").equals("auto");
        acknowledge = auto ? Session.AUTO_ACKNOWLEDGE : Session.DUPS_OK_ACKNOWLEDGE;
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Load load = new Load(arguments[0], options);
        int receivers = options.number("receivers", 1);
        int senders = options.number("senders", 1);
        for (int i = 0; i < receivers; i++) {
            load.receiver();
        }
        Sender[] threads = new Sender[senders];
        for (int i = 0; i < senders; i++) {
            threads[i] = load.sender();
        }
        int warmup = options.number("warmup", 5000) / senders;
        if (warmup > 0) {
            load.run(threads, warmup);
        }
        System.out.println(load.run(threads, options.number("messages", 20_000) / senders));
        for (Connection connection : load.connections) {
            connection.close();
        }
    }

    private void receiver() throws JMSException {
        Connection connection = factory.createConnection();
        connections.add(connection);
        Session session = connection.createSession(false, acknowledge);
        session.createConsumer(session.createQueue(queue))
                .setMessageListener(
                        message -> {
                            long count = received.incrementAndGet();
                            if (count == 1) {
                                firstReceived = System.nanoTime();
                            }
                            if (count == target) {
                                lastReceived = System.nanoTime();
                                done.countDown();
                            }
                        });
        connection.start();
    }

    private Sender sender() throws JMSException {
        Connection connection = factory.createConnection();
        connections.add(connection);
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue to = session.createQueue(queue);
        MessageProducer producer = session.createProducer(to);
        producer.setDeliveryMode(mode);
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(new byte[size]);
        return new Sender(producer, message);
    }

    /** Sends one message again and again, and notes how long each send took. */
    private static final class Sender {
        final MessageProducer producer;
        final BytesMessage message;
        long[] nanoseconds = {};

        Sender(MessageProducer producer, BytesMessage message) {
            this.producer = producer;
            this.message = message;
        }

        void send(int count) {
            nanoseconds = new long[count];
            try {
                for (int i = 0; i < count; i++) {
                    long before = System.nanoTime();
                    producer.send(message);
                    nanoseconds[i] = System.nanoTime() - before;
                }
            } catch (JMSException error) {
                error.printStackTrace();
                System.exit(1);
            }
        }
    }

    /** Every sender sends `each` messages; ends when all are received. */
    private String run(Sender[] senders, int each) throws InterruptedException {
        long messages = (long) each * senders.length;
        received.set(0);
        done = new CountDownLatch(1);
        target = messages;
        Thread[] threads = new Thread[senders.length];
        for (int i = 0; i < threads.length; i++) {
            Sender sender = senders[i];
            threads[i] = new Thread(() -> sender.send(each));
        }
        long began = System.nanoTime();
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        long sent = System.nanoTime();
        for (long before = -1; !done.await(STALLED_SECONDS, TimeUnit.SECONDS); ) {
            if (received.get() == before) {
                System.err.println("only " + before + " of " + messages + " came");
                System.exit(1);
            }
            before = received.get();
        }
        long[] all = new long[(int) messages];
        for (int i = 0; i < senders.length; i++) {
            System.arraycopy(senders[i].nanoseconds, 0, all, i * each, each);
        }
        Arrays.sort(all);
        return String.format(
                "{\"messages\": %d, \"senders\": %d, \"receivers\": %d, \"size\": %d, "
                        + "\"mode\": \"%s\", \"acknowledge\": \"%s\", \"seconds\": %.3f, "
                        + "\"rate\": %d, \"send_rate\": %d, \"receive_rate\": %d, "
                        + "\"send_us\": {\"p50\": %d, \"p99\": %d, \"max\": %d}}",
                messages,
                senders.length,
                connections.size() - senders.length,
                size,
                mode == DeliveryMode.PERSISTENT ? "persistent" : "non-persistent",
                acknowledge == Session.AUTO_ACKNOWLEDGE ? "auto" : "dups",
                (lastReceived - began) / 1e9,
                Math.round(messages / ((lastReceived - began) / 1e9)),
                Math.round(messages / ((sent - began) / 1e9)),
                Math.round((messages - 1) / ((lastReceived - firstReceived) / 1e9)),
                all[all.length / 2] / 1000,
                all[(int) (all.length * 0.99)] / 1000,
                all[all.length - 1] / 1000);
    }

    /** `name=value` after the address. */
    private static final class Options {
        private final String[] arguments;

        Options(String[] arguments) {
            this.arguments = arguments;
        }

        String text(String name, String otherwise) {
            for (int i = 1; i < arguments.length; i++) {
                if (arguments[i].startsWith(name + "=")) {
                    return arguments[i].substring(name.length() + 1);
                }
            }
            return otherwise;
        }

        int number(String name, int otherwise) {
            return Integer.parseInt(text(name, "" + otherwise));
        }
    }
}
