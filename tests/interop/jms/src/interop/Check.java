package interop;

import java.util.Arrays;
import java.util.Objects;

/** What a case claims. */
final class Check {
    private Check() {}

    interface Action {
        void run() throws Exception;
    }

    static void that(boolean claim, String otherwise) {
        if (!claim) {
            throw new AssertionError(otherwise);
        }
    }

    static void equal(Object expected, Object actual) {
        boolean same =
                expected instanceof byte[] && actual instanceof byte[]
                        ? Arrays.equals((byte[]) expected, (byte[]) actual)
                        : Objects.equals(expected, actual);
        that(same, "expected " + shown(expected) + ", got " + shown(actual));
    }

    /** The action throws this class of exception. */
    static <E extends Throwable> E thrown(Class<E> expected, Action action) {
        try {
            action.run();
        } catch (Throwable error) {
            if (expected.isInstance(error)) {
                return expected.cast(error);
            }
            throw new AssertionError("expected " + expected.getSimpleName() + ", got " + error, error);
        }
        throw new AssertionError("expected " + expected.getSimpleName() + ", but nothing was thrown");
    }

    private static String shown(Object value) {
        if (value == null) {
            return "null";
        }
        String text = value instanceof byte[] ? Arrays.toString((byte[]) value) : value.toString();
        if (text.length() > 200) {
            text = text.substring(0, 200) + "... (" + text.length() + " characters)";
        }
        return value.getClass().getSimpleName() + " <" + text + ">";
    }
}
