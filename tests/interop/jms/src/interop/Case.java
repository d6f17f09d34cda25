package interop;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/** A method that is a test: it takes a {@link Room}, and fails by throwing anything. */
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
@interface Case {
    /** Longest time it may take. */
    int seconds() default 180;

    /** It has the broker for itself, because it restarts it or measures what others disturb. */
    boolean alone() default false;

    /** What the broker must have been started for, as named on the command line; "" = nothing. */
    String needs() default "";
}
