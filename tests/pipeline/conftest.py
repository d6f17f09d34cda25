"""One Spark session for all tests of the pipeline in a process: starting one takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sluicemq.pipeline.delta import INTERPRETED
from sluicemq.pipeline.session import session
from tests.pipeline.java_options import SMALL_HEAP


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    has_home = "SPARK_HOME" in os.environ
    spark = session(
        "tests",
        {
            "spark.driver.memory": "2g",
            # A collection copies as much from a large young generation as from a small one.
            "spark.driver.extraJavaOptions": f"{SMALL_HEAP} -Xmn1g",
            # Compiling the plans of a few rows takes most of the time.
            **INTERPRETED,
        },
    )
    if not has_home:
        # Sessions of programs that tests start use the class archive only if they set this.
        os.environ.pop("SPARK_HOME", None)
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()
