package interop;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Runs cases against a broker.
 *
 * <pre>Runner HOST:PORT [threads=N] [only=PREFIX[,PREFIX...]] [WHAT[=HOST:PORT]...]</pre>
 *
 * WHAT is what cases can need: a second listener with logins, somebody who restarts the broker.
 * One line on standard output for each case: PASS or FAIL or SKIP, its name, its milliseconds, the
 * reason; separated by tabs, the reason without line breaks. Errors in full go to standard error.
 *
 * With `restarts`, a case may ask for something to be done to the broker, in a line that is to be
 * answered with any line on standard input once it is done:
 *
 * <pre>
 * RESTART   kill it, and start it at the same address
 * STOP      the same, but let it end in order
 * FREEZE    it shall do nothing (SIGSTOP)
 * THAW      it shall go on (SIGCONT)
 * </pre>
 */
public final class Runner {
    private static final List<Class<?>> HOLDERS =
            List.of(
                    Messages.class,
                    Properties.class,
                    Headers.class,
                    Acknowledging.class,
                    Transactions.class,
                    Queues.class,
                    Topics.class,
                    Shared.class,
                    Temporary.class,
                    Browsing.class,
                    Selectors.class,
                    Distributed.class,
                    Listening.class,
                    Simplified.class,
                    Flow.class,
                    Dead.class,
                    Metrics.class,
                    Connections.class,
                    Logins.class,
                    Others.class,
                    Restarts.class);

    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static final BufferedReader IN =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private final String address;
    private final Map<String, String> offered;

    private Runner(String address, Map<String, String> offered) {
        this.address = address;
        this.offered = offered;
    }

    public static void main(String[] arguments) throws Exception {
        // the client prints there what it notices
        System.setOut(System.err);
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i < arguments.length; i++) {
            String[] parts = arguments[i].split("=", 2);
            options.put(parts[0], parts.length > 1 ? parts[1] : "");
        }
        int threads = Integer.parseInt(options.getOrDefault("threads", "4"));
        new Runner(arguments[0], options).run(threads);
        System.exit(0);
    }

    private void run(int threads) throws Exception {
        List<Method> together = new ArrayList<>();
        List<Method> alone = new ArrayList<>();
        for (Class<?> holder : HOLDERS) {
            Method[] methods = holder.getDeclaredMethods();
            java.util.Arrays.sort(methods, Comparator.comparing(Method::getName));
            for (Method method : methods) {
                Case described = method.getAnnotation(Case.class);
                if (described != null && chosen(name(method))) {
                    (described.alone() ? alone : together).add(method);
                }
            }
        }
        // the slow ones first, so that none of them is left alone at the end
        together.sort(Comparator.comparing((Method m) -> -m.getAnnotation(Case.class).seconds()));
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<?>> running = new ArrayList<>();
        for (Method method : together) {
            running.add(pool.submit(() -> judge(method)));
        }
        for (Future<?> future : running) {
            future.get();
        }
        for (Method method : alone) {
            judge(method);
        }
    }

    private boolean chosen(String name) {
        String only = options("only");
        if (only.isEmpty()) {
            return true;
        }
        for (String prefix : only.split(",")) {
            if (name.startsWith(prefix)) {
                return true;
            }
        }
        return false;
    }

    private String options(String name) {
        return offered.getOrDefault(name, "");
    }

    private static String name(Method method) {
        return method.getDeclaringClass().getSimpleName().toLowerCase() + "." + method.getName();
    }

    /** Runs one case in a thread of its own, and says how it ended. */
    private void judge(Method method) {
        Case described = method.getAnnotation(Case.class);
        String name = name(method);
        if (!described.needs().isEmpty() && !offered.containsKey(described.needs())) {
            say("SKIP", name, 0, "needs " + described.needs());
            return;
        }
        long before = System.nanoTime();
        Throwable[] failure = new Throwable[1];
        Thread thread =
                new Thread(
                        () -> {
                            try (Room room = new Room(name, address, offered)) {
                                method.invoke(null, room);
                            } catch (InvocationTargetException error) {
                                failure[0] = error.getCause();
                            } catch (Throwable error) {
                                failure[0] = error;
                            }
                        },
                        name);
        thread.setDaemon(true);
        thread.start();
        try {
            thread.join(TimeUnit.SECONDS.toMillis(described.seconds()));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        long took = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - before);
        if (thread.isAlive()) {
            Throwable stuck = new Throwable("not done after " + described.seconds() + " s");
            stuck.setStackTrace(thread.getStackTrace());
            failure[0] = stuck;
            thread.interrupt();
        }
        if (failure[0] == null) {
            say("PASS", name, took, "");
            return;
        }
        synchronized (System.err) {
            System.err.println("-- " + name);
            failure[0].printStackTrace();
        }
        say("FAIL", name, took, reason(failure[0]));
    }

    private static String reason(Throwable failure) {
        StringBuilder text = new StringBuilder();
        Set<Throwable> seen = new HashSet<>();
        for (Throwable each = failure; each != null && seen.add(each); each = each.getCause()) {
            text.append(text.length() > 0 ? " <- " : "");
            if (each.getClass() != AssertionError.class && each.getClass() != Throwable.class) {
                text.append(each.getClass().getSimpleName()).append(": ");
            }
            text.append(each.getMessage());
        }
        for (StackTraceElement frame : failure.getStackTrace()) {
            if (frame.getClassName().startsWith("interop.") && !frame.getClassName().equals("interop.Check")) {
                text.append(" (").append(frame.getFileName()).append(':').append(frame.getLineNumber()).append(')');
                break;
            }
        }
        return text.toString();
    }

    private static synchronized void say(String verdict, String name, long took, String reason) {
        OUT.println(verdict + "\t" + name + "\t" + took + "\t" + reason.replaceAll("\\s+", " "));
    }

    /** Asks whoever started this program to do something, and waits until it is done. */
    static void ask(String what) throws Exception {
        synchronized (Runner.class) {
            OUT.println(what);
        }
        Check.that(IN.readLine() != null, "nobody answers " + what);
    }
}
