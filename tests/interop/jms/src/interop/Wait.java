package interop;

import java.util.concurrent.Callable;
import java.util.function.Supplier;

/** For what happens in another thread. */
final class Wait {
    private Wait() {}

    static void until(Callable<Boolean> reached, Supplier<String> otherwise) throws Exception {
        long end = System.currentTimeMillis() + Room.SOON;
        while (!reached.call()) {
            Check.that(System.currentTimeMillis() < end, otherwise.get());
            Thread.sleep(5);
        }
    }
}
