package interop;

import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.XAConnection;
import jakarta.jms.XASession;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;

/** Distributed transactions, driven as a transaction manager does. JTA 1.1, section 3.4. */
final class Distributed {
    private Distributed() {}

    /** A branch, distinct by its text. */
    record Branch(String global, String branch) implements Xid {
        @Override
        public int getFormatId() {
            return 4711;
        }

        @Override
        public byte[] getGlobalTransactionId() {
            return global.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public byte[] getBranchQualifier() {
            return branch.getBytes(StandardCharsets.US_ASCII);
        }

        boolean is(Xid other) {
            return other.getFormatId() == getFormatId()
                    && Arrays.equals(other.getGlobalTransactionId(), getGlobalTransactionId())
                    && Arrays.equals(other.getBranchQualifier(), getBranchQualifier());
        }
    }

    private static Branch branch(Room room, String name) {
        return new Branch(room.name(""), name);
    }

    static XASession session(Room room) throws JMSException {
        XAConnection connection = room.keep(room.distributed().createXAConnection());
        connection.start();
        return connection.createXASession();
    }

    static boolean listed(XAResource resource, Branch branch) throws XAException {
        for (Xid xid : resource.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN)) {
            if (branch.is(xid)) {
                return true;
            }
        }
        return false;
    }

    @Case
    static void twoPhases(Room room) throws Exception {
        XASession session = session(room);
        XAResource resource = session.getXAResource();
        Branch branch = branch(room, "1");
        Session other = room.session();
        MessageConsumer watcher = other.createConsumer(room.queue(other));
        resource.start(branch, XAResource.TMNOFLAGS);
        Room.send(session, room.queue(session), "m", 3);
        resource.end(branch, XAResource.TMSUCCESS);
        Check.equal(XAResource.XA_OK, resource.prepare(branch));
        Room.nothing(watcher);
        resource.commit(branch, false);
        Check.equal(Room.numbered("m", 0, 3), Room.texts(watcher, 3));
    }

    @Case
    static void onePhase(Room room) throws Exception {
        XASession session = session(room);
        XAResource resource = session.getXAResource();
        Branch branch = branch(room, "1");
        resource.start(branch, XAResource.TMNOFLAGS);
        Room.send(session, room.queue(session), "m", 3);
        resource.end(branch, XAResource.TMSUCCESS);
        resource.commit(branch, true);
        Session other = room.session();
        MessageConsumer watcher = other.createConsumer(room.queue(other));
        Check.equal(Room.numbered("m", 0, 3), Room.texts(watcher, 3));
    }

    @Case
    static void rolledBack(Room room) throws Exception {
        XASession session = session(room);
        XAResource resource = session.getXAResource();
        Branch branch = branch(room, "1");
        resource.start(branch, XAResource.TMNOFLAGS);
        Room.send(session, room.queue(session), "dropped");
        resource.end(branch, XAResource.TMSUCCESS);
        resource.rollback(branch);
        Session other = room.session();
        Room.nothing(other.createConsumer(room.queue(other)));
    }

    @Case
    static void rolledBackAfterPrepare(Room room) throws Exception {
        Session other = room.session();
        Queue in = other.createQueue(room.name("in"));
        Queue out = other.createQueue(room.name("out"));
        Room.send(other, in, "m", 2);
        XASession session = session(room);
        XAResource resource = session.getXAResource();
        Branch branch = branch(room, "1");
        MessageConsumer consumer = session.createConsumer(in);
        resource.start(branch, XAResource.TMNOFLAGS);
        Room.expect(consumer, "m0");
        Room.send(session, out, "dropped");
        resource.end(branch, XAResource.TMSUCCESS);
        resource.prepare(branch);
        resource.rollback(branch);
        session.close();
        MessageConsumer again = other.createConsumer(in);
        Message got = Room.receive(again);
        Check.equal("m0", ((TextMessage) got).getText());
        Check.equal(true, got.getJMSRedelivered());
        Room.expect(again, "m1");
        Room.nothing(other.createConsumer(out));
    }

    @Case
    static void receivedAndCommitted(Room room) throws Exception {
        Session other = room.session();
        Room.send(other, room.queue(other), "m", 3);
        XASession session = session(room);
        XAResource resource = session.getXAResource();
        Branch branch = branch(room, "1");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        resource.start(branch, XAResource.TMNOFLAGS);
        Room.expect(consumer, "m0", "m1");
        resource.end(branch, XAResource.TMSUCCESS);
        resource.prepare(branch);
        resource.commit(branch, false);
        session.close();
        MessageConsumer rest = other.createConsumer(room.queue(other));
        Room.expect(rest, "m2");
        Room.nothing(rest);
    }

    /** The same resource, one transaction after another. */
    @Case
    static void oneAfterAnother(Room room) throws Exception {
        XASession session = session(room);
        XAResource resource = session.getXAResource();
        for (int i = 0; i < 6; i++) {
            Branch branch = branch(room, "" + i);
            resource.start(branch, XAResource.TMNOFLAGS);
            Room.send(session, room.queue(session), "m" + i);
            resource.end(branch, XAResource.TMSUCCESS);
            if (i % 3 == 2) {
                resource.rollback(branch);
            } else {
                resource.prepare(branch);
                resource.commit(branch, false);
            }
        }
        Session other = room.session();
        MessageConsumer watcher = other.createConsumer(room.queue(other));
        Room.expect(watcher, "m0", "m1", "m3", "m4");
        Room.nothing(watcher);
    }

    /** A prepared branch is listed, outlives its connection, and anybody may end it. */
    @Case
    static void recovered(Room room) throws Exception {
        XAConnection connection = room.keep(room.distributed().createXAConnection());
        connection.start();
        XASession session = connection.createXASession();
        XAResource resource = session.getXAResource();
        Branch commit = branch(room, "commit");
        Branch rollback = branch(room, "rollback");
        for (Branch branch : new Branch[] {commit, rollback}) {
            resource.start(branch, XAResource.TMNOFLAGS);
            Room.send(session, room.queue(session), branch.branch());
            resource.end(branch, XAResource.TMSUCCESS);
            Check.that(!listed(resource, branch), "listed before it is prepared");
            resource.prepare(branch);
        }
        connection.close();
        XAResource other = session(room).getXAResource();
        Check.that(listed(other, commit) && listed(other, rollback), "not listed");
        other.commit(commit, false);
        other.rollback(rollback);
        Check.that(!listed(other, commit) && !listed(other, rollback), "still listed");
        Session reader = room.session();
        MessageConsumer watcher = reader.createConsumer(room.queue(reader));
        Room.expect(watcher, "commit");
        Room.nothing(watcher);
    }

    @Case
    static void joined(Room room) throws Exception {
        XAConnection connection = room.keep(room.distributed().createXAConnection());
        connection.start();
        XASession one = connection.createXASession();
        XASession two = connection.createXASession();
        Branch branch = branch(room, "1");
        one.getXAResource().start(branch, XAResource.TMNOFLAGS);
        Room.send(one, room.queue(one), "one");
        one.getXAResource().end(branch, XAResource.TMSUCCESS);
        Check.that(one.getXAResource().isSameRM(two.getXAResource()), "not the same");
        two.getXAResource().start(branch, XAResource.TMJOIN);
        Room.send(two, room.queue(two), "two");
        two.getXAResource().end(branch, XAResource.TMSUCCESS);
        one.getXAResource().prepare(branch);
        one.getXAResource().commit(branch, false);
        Session other = room.session();
        MessageConsumer watcher = other.createConsumer(room.queue(other));
        Room.expect(watcher, "one", "two");
    }

    @Case
    static void suspended(Room room) throws Exception {
        XASession session = session(room);
        XAResource resource = session.getXAResource();
        Branch branch = branch(room, "1");
        resource.start(branch, XAResource.TMNOFLAGS);
        Room.send(session, room.queue(session), "first");
        resource.end(branch, XAResource.TMSUSPEND);
        resource.start(branch, XAResource.TMRESUME);
        Room.send(session, room.queue(session), "second");
        resource.end(branch, XAResource.TMSUCCESS);
        resource.prepare(branch);
        resource.commit(branch, false);
        Session other = room.session();
        MessageConsumer watcher = other.createConsumer(room.queue(other));
        Room.expect(watcher, "first", "second");
    }

    /** A branch that failed can only be rolled back. */
    @Case
    static void failed(Room room) throws Exception {
        XASession session = session(room);
        XAResource resource = session.getXAResource();
        Branch branch = branch(room, "1");
        resource.start(branch, XAResource.TMNOFLAGS);
        Room.send(session, room.queue(session), "dropped");
        resource.end(branch, XAResource.TMFAIL);
        Check.thrown(XAException.class, () -> resource.prepare(branch));
        resource.rollback(branch);
        Session other = room.session();
        Room.nothing(other.createConsumer(room.queue(other)));
    }

    @Case
    static void unknownBranch(Room room) throws Exception {
        XAResource resource = session(room).getXAResource();
        Branch branch = branch(room, "never");
        Check.thrown(XAException.class, () -> resource.commit(branch, false));
        Check.thrown(XAException.class, () -> resource.rollback(branch));
        Check.thrown(XAException.class, () -> resource.prepare(branch));
    }

    @Case
    static void sameManager(Room room) throws Exception {
        XAResource one = session(room).getXAResource();
        XAResource two = session(room).getXAResource();
        Check.that(one.isSameRM(one), "not the same as itself");
        Check.that(one.isSameRM(two), "another connection to the same broker is another manager");
    }

    /** What a prepared branch has received stays out of sight. */
    @Case
    static void preparedHolds(Room room) throws Exception {
        Session other = room.session();
        Room.send(other, room.queue(other), "m", 2);
        XAConnection connection = room.keep(room.distributed().createXAConnection());
        connection.start();
        XASession session = connection.createXASession();
        XAResource resource = session.getXAResource();
        Branch branch = branch(room, "1");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        resource.start(branch, XAResource.TMNOFLAGS);
        Room.expect(consumer, "m0");
        resource.end(branch, XAResource.TMSUCCESS);
        resource.prepare(branch);
        connection.close();
        MessageConsumer rest = other.createConsumer(room.queue(other));
        Room.expect(rest, "m1");
        Room.nothing(rest);
        XAResource manager = session(room).getXAResource();
        manager.rollback(branch);
        Room.expect(rest, "m0");
    }

    /** An open branch ends with its connection. */
    @Case
    static void unpreparedEndsWithItsConnection(Room room) throws Exception {
        XAConnection connection = room.keep(room.distributed().createXAConnection());
        connection.start();
        XASession session = connection.createXASession();
        XAResource resource = session.getXAResource();
        Branch branch = branch(room, "1");
        resource.start(branch, XAResource.TMNOFLAGS);
        Room.send(session, room.queue(session), "dropped");
        connection.close();
        XAResource other = session(room).getXAResource();
        Check.that(!listed(other, branch), "listed although it was never prepared");
        Session reader = room.session();
        Room.nothing(reader.createConsumer(room.queue(reader)));
    }

    @Case
    static void durableSubscription(Room room) throws Exception {
        XAConnection connection = room.keep(room.distributed().createXAConnection());
        connection.setClientID(room.name("client"));
        connection.start();
        XASession session = connection.createXASession();
        XAResource resource = session.getXAResource();
        MessageConsumer consumer =
                session.createDurableSubscriber(room.topic(session), "durable");
        Session other = room.session();
        Room.send(other, room.topic(other), "m", 3);
        Branch rollback = branch(room, "rollback");
        resource.start(rollback, XAResource.TMNOFLAGS);
        Room.expect(consumer, "m0");
        resource.end(rollback, XAResource.TMSUCCESS);
        resource.rollback(rollback);
        Branch commit = branch(room, "commit");
        resource.start(commit, XAResource.TMNOFLAGS);
        Set<String> texts = new HashSet<>(Room.texts(consumer, 3));
        resource.end(commit, XAResource.TMSUCCESS);
        resource.prepare(commit);
        resource.commit(commit, false);
        Check.equal(Set.of("m0", "m1", "m2"), texts);
        consumer.close();
        session.unsubscribe("durable");
    }

    /** Outside of any branch an XASession acknowledges by itself. */
    @Case
    static void withoutBranch(Room room) throws Exception {
        XASession session = session(room);
        Room.send(session, room.queue(session), "plain");
        MessageConsumer consumer = session.createConsumer(room.queue(session));
        Room.expect(consumer, "plain");
        consumer.close();
        Session other = room.session();
        Room.nothing(other.createConsumer(room.queue(other)));
    }
}
