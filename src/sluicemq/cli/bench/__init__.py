"""Load generators. They send prebuilt bytes and parse next to nothing, so that the broker is
what is measured; they run in a process of their own."""
