"""Lets Spark find `format("sluicemq-table")` by its name: it looks at packages named `pyspark_*`.

It imports every one of them, and one that fails disables all: without the packages of the extra
"pipeline" there is nothing to find here, and no failure.
"""

try:
    from sluicemq.pipeline.tables.datasource import TableSource as DefaultSource
except ModuleNotFoundError:
    __all__ = []
else:
    __all__ = ["DefaultSource"]
