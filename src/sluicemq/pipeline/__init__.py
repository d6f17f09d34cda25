"""Data pipeline on Spark: the journal as a source, queues as a sink, tables in a lakehouse."""
