package interop;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueConnection;
import jakarta.jms.QueueRequestor;
import jakarta.jms.QueueSession;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import jakarta.jms.TopicConnection;
import jakarta.jms.TopicRequestor;
import jakarta.jms.TopicSession;

/** Temporary destinations, and requests that are answered through them. JMS 1.1, section 4.4.3. */
final class Temporary {
    private Temporary() {}

    /** Answers each text with itself and an exclamation mark. */
    private static void answerer(Session session, jakarta.jms.Destination from) throws JMSException {
        MessageProducer producer = session.createProducer(null);
        session.createConsumer(from)
                .setMessageListener(
                        message -> {
                            try {
                                String text = ((TextMessage) message).getText();
                                Message answer = session.createTextMessage(text + "!");
                                answer.setJMSCorrelationID(message.getJMSMessageID());
                                producer.send(message.getJMSReplyTo(), answer);
                            } catch (JMSException error) {
                                throw new AssertionError(error);
                            }
                        });
    }

    @Case
    static void queueRequestor(Room room) throws Exception {
        Session server = room.session();
        answerer(server, room.queue(server));
        QueueConnection connection = room.keep(room.queues().createQueueConnection());
        connection.start();
        QueueSession session = connection.createQueueSession(false, Session.AUTO_ACKNOWLEDGE);
        QueueRequestor requestor =
                new QueueRequestor(session, session.createQueue(room.name("")));
        for (int i = 0; i < 20; i++) {
            Message answer = requestor.request(session.createTextMessage("question " + i));
            Check.equal("question " + i + "!", ((TextMessage) answer).getText());
        }
        requestor.close();
    }

    @Case
    static void topicRequestor(Room room) throws Exception {
        Session server = room.session();
        answerer(server, room.topic(server));
        TopicConnection connection = room.keep(room.topics().createTopicConnection());
        connection.start();
        TopicSession session = connection.createTopicSession(false, Session.AUTO_ACKNOWLEDGE);
        TopicRequestor requestor =
                new TopicRequestor(session, session.createTopic(room.name("")));
        for (int i = 0; i < 5; i++) {
            Message answer = requestor.request(session.createTextMessage("question " + i));
            Check.equal("question " + i + "!", ((TextMessage) answer).getText());
        }
        requestor.close();
    }

    @Case
    static void correlatedAnswers(Room room) throws Exception {
        Session server = room.session();
        answerer(server, room.queue(server));
        Session session = room.session();
        TemporaryQueue answers = session.createTemporaryQueue();
        MessageProducer producer = session.createProducer(room.queue(session));
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        MessageConsumer consumer = session.createConsumer(answers);
        TextMessage[] questions = new TextMessage[50];
        for (int i = 0; i < questions.length; i++) {
            questions[i] = session.createTextMessage("q" + i);
            questions[i].setJMSReplyTo(answers);
            producer.send(questions[i]);
        }
        for (TextMessage question : questions) {
            Message answer = Room.receive(consumer);
            Check.equal(question.getText() + "!", ((TextMessage) answer).getText());
            Check.equal(question.getJMSMessageID(), answer.getJMSCorrelationID());
        }
    }

    @Case
    static void distinct(Room room) throws Exception {
        Session session = room.session();
        TemporaryQueue one = session.createTemporaryQueue();
        TemporaryQueue two = session.createTemporaryQueue();
        Check.that(!one.getQueueName().equals(two.getQueueName()), one.getQueueName());
        Room.send(session, one, "one");
        Room.send(session, two, "two");
        Room.expect(session.createConsumer(two), "two");
        Room.expect(session.createConsumer(one), "one");
    }

    @Case
    static void topic(Room room) throws Exception {
        Session session = room.session();
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageConsumer one = session.createConsumer(topic);
        MessageConsumer two = session.createConsumer(topic);
        Session other = room.session();
        Room.send(other, topic, "to both");
        Room.expect(one, "to both");
        Room.expect(two, "to both");
    }

    @Case
    static void foreignConsumerIsRefused(Room room) throws Exception {
        TemporaryQueue queue = room.session().createTemporaryQueue();
        Session other = room.session();
        Check.thrown(JMSException.class, () -> other.createConsumer(queue));
        // under its name, so that the client does not see what it is
        Check.thrown(JMSException.class, () -> other.createConsumer(named(queue.getQueueName())));
    }

    private static Queue named(String name) throws JMSException {
        com.sun.messaging.BasicQueue queue = new com.sun.messaging.BasicQueue();
        queue.setProperty(com.sun.messaging.DestinationConfiguration.imqDestinationName, name);
        return queue;
    }

    @Case
    static void deletedWithConsumer(Room room) throws Exception {
        Session session = room.session();
        TemporaryQueue queue = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(queue);
        Check.thrown(JMSException.class, queue::delete);
        consumer.close();
        queue.delete();
    }

    @Case
    static void deletedIsGone(Room room) throws Exception {
        Session session = room.session();
        TemporaryQueue queue = session.createTemporaryQueue();
        Session other = room.session();
        MessageProducer producer = other.createProducer(queue);
        producer.send(other.createTextMessage("fine"));
        queue.delete();
        Check.thrown(JMSException.class, () -> producer.send(other.createTextMessage("where?")));
        Check.thrown(JMSException.class, () -> other.createProducer(queue));
    }

    @Case
    static void endsWithItsConnection(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        TemporaryQueue queue = session.createTemporaryQueue();
        TemporaryTopic topic = session.createTemporaryTopic();
        Session other = room.session();
        other.createProducer(queue).send(other.createTextMessage("fine"));
        connection.close();
        Wait.until(() -> refused(other, queue), () -> "the queue is still there");
        Wait.until(() -> refused(other, topic), () -> "the topic is still there");
    }

    private static boolean refused(Session session, jakarta.jms.Destination to) {
        try {
            session.createProducer(to).close();
            return false;
        } catch (JMSException error) {
            return true;
        }
    }

    /** A session of the same connection may consume, whichever made it. */
    @Case
    static void anySessionOfTheConnection(Room room) throws Exception {
        Connection connection = room.connection();
        Session one = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Session two = connection.createSession(true, 0);
        TemporaryQueue queue = one.createTemporaryQueue();
        Room.send(one, queue, "x");
        one.close();
        Room.expect(two.createConsumer(queue), "x");
        two.commit();
    }

    @Case
    static void durableOnTemporaryTopic(Room room) throws Exception {
        Session session = room.named(room.name("client")).createSession(false, 1);
        Topic topic = session.createTemporaryTopic();
        Check.thrown(JMSException.class, () -> session.createDurableSubscriber(topic, "durable"));
    }
}
