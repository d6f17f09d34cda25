"""Airflow DAG: bring the lake up to date with a broker's journal, compact it, and write the report.

Needs Airflow 3 with apache-airflow-providers-apache-spark, whose connection `spark_default` names
the cluster, and a connection `sluicemq` whose password is a token of a superuser of the broker.
ENVIRONMENT is a Python environment with `sluicemq[pipeline]` on the worker and on all nodes;
`sluicemq pipeline jars` fetches its Java libraries.
"""

from datetime import datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

BROKER = "https://broker.example.org:7680"
LAKE = "s3a://warehouse/sluicemq"
REPORT = "/srv/reports/sluicemq.html"
ENVIRONMENT = "/opt/pipeline"
PACKAGE = f"{ENVIRONMENT}/lib/python3.11/site-packages/sluicemq"


def pipeline(task: str, *arguments: str) -> SparkSubmitOperator:
    """Return the task that runs `sluicemq pipeline TASK` on the cluster."""
    return SparkSubmitOperator(
        task_id=task,
        application=f"{PACKAGE}/cli/__main__.py",
        application_args=["pipeline", task, "--lake", LAKE, *arguments],
        jars=f"{ENVIRONMENT}/share/sluicemq/jars/delta/*.jar",
        conf={"spark.pyspark.python": f"{ENVIRONMENT}/bin/python"},
        env_vars={"SLUICEMQ_TOKEN": "{{ conn.sluicemq.password }}"},
    )


with DAG(
    dag_id="sluicemq_lake",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    # only one process at a time may write the events of a broker
    max_active_runs=1,
    # a task that is repeated continues where the tables are
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
):
    (
        pipeline("backfill", "--url", BROKER, "--slot", "airflow")
        >> pipeline("maintain", "--retention", "7d")
        >> pipeline("report", "--output", REPORT)
    )
