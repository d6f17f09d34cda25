"""Streaming table of the messages of the queue `orders`, with the fields of their JSON bodies."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
URL = spark.conf.get("spark.orders.journal")
FIELDS = "id BIGINT, amount DECIMAL(10,2), customer STRING"


@dp.table(comment="Messages of the queue orders, as they were published.")
def orders() -> DataFrame:
    journal = spark.readStream.format("sluicemq").option("url", URL)
    journal = journal.option("destinations", "orders").option("startingOffsets", "earliest")
    order = f.from_json(f.col("body").cast("string"), FIELDS)
    return (
        journal.load()
        .select("sequence", "time", order.alias("order"))
        .select("sequence", "time", "order.*")
    )
