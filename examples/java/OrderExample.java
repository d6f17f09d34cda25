import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.Queue;

/** Send messages in a JMS transaction, and receive those that a selector matches. */
public final class OrderExample {
    private static final long TIMEOUT_MS = 30_000;

    private OrderExample() {}

    public static void main(String[] arguments) throws Exception {
        String port = arguments.length > 0 ? arguments[0] : "7676";
        ConnectionFactory factory = new ConnectionFactory();
        factory.setProperty(
                ConnectionConfiguration.imqAddressList, "mq://127.0.0.1:" + port + "/jms");
        try (JMSContext context = factory.createContext(JMSContext.SESSION_TRANSACTED)) {
            Queue queue = context.createQueue("exampleJavaOrders");
            context.createProducer().setProperty("city", "Oslo").send(queue, "two pizzas");
            context.createProducer().setProperty("city", "Bergen").send(queue, "one pizza");
            context.commit();
            try (JMSConsumer consumer = context.createConsumer(queue, "city = 'Bergen'")) {
                String body = consumer.receiveBody(String.class, TIMEOUT_MS);
                context.commit();
                System.out.println("Bergen: " + body);
            }
        }
    }
}
