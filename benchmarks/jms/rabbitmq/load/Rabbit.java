package load;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What Load does, by RabbitMQ's Java client: senders that wait for the confirm of each persistent
 * message, receivers that acknowledge each, every one with a connection of its own.
 *
 * <pre>Rabbit PORT PAIRS MESSAGES WARMUP SIZE</pre>
 *
 * Prints messages per second, from the first send to the last message received.
 */
public final class Rabbit {
    private static final String QUEUE = "load";

    private static final AtomicLong received = new AtomicLong();
    private static volatile long target;
    private static volatile CountDownLatch done = new CountDownLatch(1);

    private Rabbit() {}

    public static void main(String[] arguments) throws Exception {
        int pairs = Integer.parseInt(arguments[1]);
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(arguments[0]));
        List<Connection> connections = new ArrayList<>();
        List<Channel> senders = new ArrayList<>();
        for (int i = 0; i < pairs; i++) {
            Connection connection = factory.newConnection();
            connections.add(connection);
            Channel channel = connection.createChannel();
            channel.queueDeclare(QUEUE, true, false, false, null);
            channel.basicQos(1000);
            channel.basicConsume(
                    QUEUE,
                    false,
                    (tag, delivery) -> {
                        channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
                        if (received.incrementAndGet() == target) {
                            done.countDown();
                        }
                    },
                    tag -> {});
            Connection other = factory.newConnection();
            connections.add(other);
            Channel sender = other.createChannel();
            sender.confirmSelect();
            senders.add(sender);
        }
        byte[] body = new byte[Integer.parseInt(arguments[4])];
        run(senders, Integer.parseInt(arguments[3]) / pairs, body);
        System.out.println(run(senders, Integer.parseInt(arguments[2]) / pairs, body));
        for (Connection connection : connections) {
            connection.close();
        }
    }

    private static long run(List<Channel> senders, int each, byte[] body) throws Exception {
        AMQP.BasicProperties persistent = MessageProperties.MINIMAL_PERSISTENT_BASIC;
        received.set(0);
        done = new CountDownLatch(1);
        target = (long) each * senders.size();
        List<Thread> threads = new ArrayList<>();
        for (Channel sender : senders) {
            threads.add(
                    new Thread(
                            () -> {
                                try {
                                    for (int i = 0; i < each; i++) {
                                        sender.basicPublish("", QUEUE, persistent, body);
                                        sender.waitForConfirmsOrDie();
                                    }
                                } catch (Exception error) {
                                    error.printStackTrace();
                                    System.exit(1);
                                }
                            }));
        }
        long began = System.nanoTime();
        for (Thread thread : threads) {
            thread.start();
        }
        done.await();
        return Math.round(target / ((System.nanoTime() - began) / 1e9));
    }
}
