"""Load generators. They send prebuilt bytes and parse almost nothing, so that the broker is the
bottleneck; they run in a process of their own."""
