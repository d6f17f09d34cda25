package interop;

import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.QueueConnection;
import jakarta.jms.QueueRequestor;
import jakarta.jms.QueueSession;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TextMessage;

/**
 * Clients of the broker's other protocols, which other_protocols.py runs. The names of their queues
 * contain hyphens, which are _HYPHEN_ in JMS.
 */
final class Others {
    private Others() {}

    private static void answered(Room room, String queue, String by) throws Exception {
        QueueConnection connection = room.keep(room.queues().createQueueConnection());
        connection.start();
        QueueSession session = connection.createQueueSession(false, Session.AUTO_ACKNOWLEDGE);
        QueueRequestor requestor = new QueueRequestor(session, session.createQueue(queue));
        for (int i = 0; i < 3; i++) {
            MapMessage question = session.createMapMessage();
            question.setString("who", room.name(""));
            question.setInt("number", i);
            question.setBytes("raw", new byte[] {1, 2});
            question.setLong("long", Long.MAX_VALUE);
            Message answer = requestor.request(question);
            Check.equal(
                    by
                            + " received {\"long\":9223372036854775807,\"number\":"
                            + i
                            + ",\"raw\":\"AQI=\",\"who\":\""
                            + room.name("")
                            + "\"}",
                    ((TextMessage) answer).getText());
            Check.equal(question.getJMSMessageID(), answer.getJMSCorrelationID());
        }
        requestor.close();
    }

    @Case(needs = "others")
    static void answeredByPhp(Room room) throws Exception {
        answered(room, "others_HYPHEN_php", "php");
    }

    @Case(needs = "others")
    static void answeredByShell(Room room) throws Exception {
        answered(room, "others_HYPHEN_shell", "shell");
    }

    @Case(needs = "others")
    static void answeredByDotnet(Room room) throws Exception {
        answered(room, "others_HYPHEN_dotnet", "dotnet");
    }

    /** A reply address of msglite begins with a digit. */
    @Case(needs = "others")
    static void askedByShell(Room room) throws Exception {
        Session session = room.session();
        TextMessage question =
                (TextMessage)
                        Room.receive(
                                session.createConsumer(
                                        session.createQueue("requests_HYPHEN_by_HYPHEN_shell")));
        Check.equal("request", question.getText());
        session.createProducer(question.getJMSReplyTo()).send(session.createTextMessage("java"));
        Room.expect(
                session.createConsumer(session.createQueue("replies_HYPHEN_to_HYPHEN_shell")), "java");
    }

    @Case(needs = "others")
    static void askedByDotnet(Room room) throws Exception {
        Session session = room.session();
        TextMessage question =
                (TextMessage)
                        Room.receive(
                                session.createConsumer(
                                        session.createQueue("requests_HYPHEN_by_HYPHEN_dotnet"),
                                        "content_HYPHEN_type LIKE 'text/%' AND JMSType = 'question'"));
        Check.equal("request", question.getText());
        Check.equal("text/plain", question.getStringProperty("content_HYPHEN_type"));
        Check.equal(6, question.getJMSPriority());
        Check.equal("c-1", question.getJMSCorrelationID());
        Message answer = session.createTextMessage("java");
        answer.setJMSCorrelationID(question.getJMSCorrelationID());
        session.createProducer(question.getJMSReplyTo()).send(answer);
        Room.expect(
                session.createConsumer(session.createQueue("replies_HYPHEN_to_HYPHEN_dotnet")),
                "[\"java\",\"c-1\"]");
    }

    /** A request that a msglite client passes on keeps its temporary queue and correlation. */
    @Case(needs = "others")
    static void forwardedByShell(Room room) throws Exception {
        Connection connection = room.connection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        TemporaryQueue answers = session.createTemporaryQueue();
        MessageConsumer answered = session.createConsumer(answers);
        Message question = session.createTextMessage("question");
        question.setJMSReplyTo(answers);
        session.createProducer(session.createQueue("others_HYPHEN_forward")).send(question);
        Session worker = room.session();
        Message got = Room.receive(worker.createConsumer(worker.createQueue("forwarded")));
        Destination to = got.getJMSReplyTo();
        Check.that(to instanceof TemporaryQueue, "the reply goes to " + to);
        Check.equal(question.getJMSMessageID(), got.getJMSCorrelationID());
        worker.createProducer(to).send(worker.createTextMessage("answer"));
        Room.expect(answered, "answer");
    }
}
