"""Write speed of tables.

    python benchmarks/pipeline_tables.py sink   [--kind delta] [--rows 1048576] [--batches 4]
    python benchmarks/pipeline_tables.py upsert [--kind delta] [--rows 50000] [--batches 40]
    python benchmarks/pipeline_tables.py merge  [--rows 50000] [--batches 40]
    python benchmarks/pipeline_tables.py compact [--kind delta]

sink     Spark writes rows of 1 KB body through format("sluicemq-table"), and by turns through its
         own Parquet writer (zstd; a directory a batch, no transactions)
upsert   one process merges batches as the silver job does: 90 % new messages, 10 % ends of
         the batch before. The time of the last quarter of the batches against
         the first tells whether the cost grows with the table
merge    the same batches by deltalake's own merge, with bounds on the key in its condition
compact  joins the files of 32 small appends
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluicemq.pipeline.tables import KINDS, table

TIME = pa.timestamp("us", tz="UTC")
BODY = 1024


def messages(first: int, count: int) -> pa.Table:
    """Generate message rows with the relevant columns, and bodies that compress about 2:1."""
    picked = np.random.default_rng(first).integers(0, 256, (count, BODY // 2), dtype=np.uint8)
    bodies = np.concatenate([picked, np.full((count, BODY // 2), 32, np.uint8)], axis=1)
    numbers = np.arange(first, first + count)
    return pa.table(
        {
            "message_sequence": pa.array(numbers),
            "destination": pa.array([f"queue-{number % 100}" for number in numbers]),
            "published": pa.array(numbers * 100 + 1_795_285_514_000_000).cast(TIME),
            "acknowledged": pa.nulls(count, TIME),
            "deliveries": pa.array(np.zeros(count, np.int64)),
            "body": pa.Array.from_buffers(
                pa.binary(),
                count,
                [
                    None,
                    pa.py_buffer(np.arange(0, BODY * count + 1, BODY, dtype=np.int32)),
                    pa.py_buffer(bodies.tobytes()),
                ],
            ),
        }
    )


def batches(rows: int, count: int) -> Iterator[pa.Table]:
    """Generate batches as the silver job merges them: new messages, and ends of earlier ones."""
    new = rows * 9 // 10
    for batch in range(count):
        fresh = messages(batch * new, new)
        if batch:
            earlier = range((batch - 1) * new, batch * new)
            fresh = _joined(fresh, random.Random(batch).sample(earlier, rows - new))
        yield fresh


def _joined(fresh: pa.Table, ends: list[int]) -> pa.Table:
    late = pa.table(
        {
            "message_sequence": pa.array(ends, pa.int64()),
            "acknowledged": pa.array([1_795_285_600_000_000] * len(ends)).cast(TIME),
            "deliveries": pa.array([1] * len(ends), pa.int64()),
        }
    )
    return pa.concat_tables([fresh, late], promote_options="default")


def combine(old: pa.Table, new: pa.Table) -> pa.Table:
    """Combine the later state of each message with the earlier one."""
    both = pa.concat_tables([old, new])
    order = pc.sort_indices(both.column("message_sequence"))
    both = both.take(order)
    numbers = both.column("message_sequence").to_numpy()
    first = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    last = np.r_[first[1:], len(numbers)] - 1
    heads, tails = both.take(pa.array(first)), both.take(pa.array(last))
    return pa.table(
        {
            name: (
                pc.coalesce(tails.column(name), heads.column(name))
                if name != "body"
                else heads.column(name)
            )
            for name in both.column_names
        }
    )


def measured_sink(kind: str, rows: int, count: int, root: Path) -> None:
    from sluicemq.pipeline.session import session
    from sluicemq.pipeline.tables.datasource import TableSource

    spark = session("benchmark")
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(TableSource)
    source = root / "source"
    for part in range(8):
        table("parquet", source, sort=("message_sequence",)).append(
            messages(part * rows // 8, rows // 8)
        )
    frame = table("parquet", source).frame(spark)
    frame.write.format("noop").mode("overwrite").save()
    for repeat in range(3):
        target = str(root / f"sink{repeat}")
        spent = {"ours": 0.0, "built in": 0.0}
        for batch in range(count):
            low, high = batch * rows // count, (batch + 1) * rows // count
            part = frame.where(f"message_sequence >= {low} and message_sequence < {high}")
            part = part.coalesce(2)
            start = time.perf_counter()
            part.write.parquet(str(root / f"built in {repeat} {batch}"), compression="zstd")
            middle = time.perf_counter()
            writer = part.write.format("sluicemq-table").mode("append").option("format", kind)
            writer.option("txnAppId", "benchmark").option("txnVersion", batch).save(target)
            spent["built in"] += middle - start
            spent["ours"] += time.perf_counter() - middle
        assert sum(file.rows for file in table(kind, target).files()) == rows
        for who, took in spent.items():
            print(
                f"sink {kind}, {who}: {rows} rows in {took:.2f} s, {rows / took / 1000:.0f} krows/s"
            )
    start = time.perf_counter()
    table(kind, target).frame(spark).write.format("noop").mode("overwrite").save()
    print(f"read by Spark: {rows / (time.perf_counter() - start) / 1000:.0f} krows/s")
    spark.stop()


def measured_upsert(kind: str, rows: int, count: int, root: Path) -> None:
    made = table(kind, root / "upsert", sort=("message_sequence",))
    took = []
    for version, batch in enumerate(batches(rows, count)):
        start = time.perf_counter()
        made.upsert(batch, ["message_sequence"], "benchmark", version, combine)
        took.append(time.perf_counter() - start)
    print_rate(f"upsert {kind}", rows, took)
    read = made.read(columns=["message_sequence", "acknowledged"])
    assert read.num_rows == len(pc.unique(read.column("message_sequence")))
    print(f"{read.num_rows} rows in {len(made.files())} files")


def measured_merge(rows: int, count: int, root: Path) -> None:
    from deltalake import DeltaTable, WriterProperties, write_deltalake

    target = str(root / "merge")
    took = []
    properties = WriterProperties(compression="ZSTD", compression_level=1, max_row_group_size=16384)
    for version, batch in enumerate(batches(rows, count)):
        start = time.perf_counter()
        if version == 0:
            write_deltalake(target, batch, writer_properties=properties)
        else:
            low = pc.min(batch.column("message_sequence")).as_py()
            names = [name for name in batch.column_names if name != "message_sequence"]
            (
                DeltaTable(target)
                .merge(
                    batch,
                    f"t.message_sequence = s.message_sequence and t.message_sequence >= {low}",
                    source_alias="s",
                    target_alias="t",
                    writer_properties=properties,
                )
                .when_matched_update({name: f"coalesce(s.{name}, t.{name})" for name in names})
                .when_not_matched_insert_all()
                .execute()
            )
        took.append(time.perf_counter() - start)
    print_rate("deltalake merge", rows, took)


def measured_compaction(kind: str, root: Path) -> None:
    made = table(kind, root / "compact", sort=("message_sequence",))
    for part in range(32):
        made.append(messages(part * 16384, 16384))
    start = time.perf_counter()
    gone = made.compact()
    took = time.perf_counter() - start
    print(f"compact {kind}: {gone} of 32 files fewer, {32 * 16384 / took / 1000:.0f} krows/s")


def print_rate(what: str, rows: int, took: list[float]) -> None:
    quarter = max(len(took) // 4, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{what}: {len(took)} x {rows} rows: {rows * len(took) / sum(took) / 1000:.0f} krows/s; "
        f"first quarter {sum(took[:quarter]) / quarter * 1000:.0f} ms a batch, "
        f"last {sum(took[-quarter:]) / quarter * 1000:.0f} ms; memory {peak} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("sink", "upsert", "merge", "compact"))
    parser.add_argument("--kind", choices=KINDS, default="delta")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--batches", type=int)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tables-") as directory:
        root = Path(directory)
        if given.what == "sink":
            measured_sink(given.kind, given.rows or 1 << 20, given.batches or 4, root)
        elif given.what == "upsert":
            measured_upsert(given.kind, given.rows or 50_000, given.batches or 40, root)
        elif given.what == "merge":
            measured_merge(given.rows or 50_000, given.batches or 40, root)
        else:
            measured_compaction(given.kind, root)


if __name__ == "__main__":
    main()
