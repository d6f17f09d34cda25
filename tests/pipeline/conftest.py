"""One Spark session for all tests of the pipeline in a process: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sluicemq.pipeline.session import SHORT_JOB, session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    spark = session(
        "tests",
        {
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": SHORT_JOB,
            # Compiling the plans of a few rows takes most of the time.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()
