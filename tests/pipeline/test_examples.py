"""Run the examples of the pipeline: the notebook, the declarative pipeline, the SQL and the DAG.

Airflow and dbt are not installed. The DAG is imported with stand-ins for the two names that it
imports, which check the arguments, and test_cluster.py submits its tasks to a cluster as Airflow
would. The models are rendered by Jinja with `source` and `ref` only, and run by Spark SQL.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.parquet as pq
import pytest
import typer
import yaml
from jinja2 import Environment, StrictUndefined
from nbclient import NotebookClient
from pyspark.sql import SparkSession

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import app
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.pipeline.delta import INTERPRETED, Tag
from sluicemq.pipeline.jars import find_java, local_home
from sluicemq.pipeline.jobs.lake import Lake
from tests.pipeline.airflow_stub import load_dag
from tests.pipeline.java_options import SMALL_HEAP, WITH_ARCHIVE
from tests.pipeline.report.sample import START, anomalies, anomaly, gold, row

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipeline"
TIMEOUT = 300.0
"""Seconds for an example; each takes some 30 s."""
ORDERS = (
    b'{"id": 1, "amount": 12.50, "customer": "Ada"}',
    b"hello",
    b'{"id": 2, "amount": 99.00, "customer": "Bob"}',
    b'{"id": 1, "amount": 15.00, "customer": "Ada"}',
)
SOURCES = str(Path(sys.modules["sluicemq"].__file__ or "").parents[1])


def test_every_example_is_listed() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text("utf-8")
    for path in EXAMPLES.iterdir():
        assert f"`pipeline/{path.name}" in readme, path


def test_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(EXAMPLES / "orders.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the notebook's outputs"
    with LocalBroker(tmp_path / "data", ["http://127.0.0.1:0"]) as broker:
        monkeypatch.setenv("SLUICEMQ_URL", f"http://127.0.0.1:{broker.port('http')}")
        monkeypatch.setenv("PYTHONPATH", SOURCES)
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        settings = {**INTERPRETED, "spark.driver.extraJavaOptions": SMALL_HEAP}
        lines = (f"{name} {value}\n" for name, value in settings.items())
        (tmp_path / "spark-defaults.conf").write_text("".join(lines))
        client = NotebookClient(
            notebook, timeout=TIMEOUT, resources={"metadata": {"path": tmp_path}}
        )
        client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2


def test_declarative_pipeline_runs(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "declarative", project)
    spec = project / "spark-pipeline.yml"
    with LocalBroker(tmp_path / "data", ["phpmq://127.0.0.1:0", "http://127.0.0.1:0"]) as broker:
        text = spec.read_text().replace("file:///var/lib/orders", tmp_path.as_uri())
        spec.write_text(text.replace("127.0.0.1:7680", f"127.0.0.1:{broker.port('http')}"))
        with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
            for body in ORDERS:
                client.send("orders", body)
        run_pipeline(project)
    assert pq.read_table(tmp_path / "warehouse" / "orders").num_rows == len(ORDERS)
    turnover = pq.read_table(tmp_path / "warehouse" / "turnover").to_pylist()
    assert sorted((row["customer"], str(row["amount"])) for row in turnover) == [
        ("Ada", "15.00"),
        ("Bob", "99.00"),
    ]


def run_pipeline(project: Path) -> None:
    home = local_home()
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": SOURCES,
    }
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(project.parent / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": WITH_ARCHIVE,
    }
    command = [home / "bin" / "spark-pipelines"]
    command += [f"--conf={name}={value}" for name, value in settings.items()]
    command.append("run")
    result = subprocess.run(
        list(map(str, command)),
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


def test_sql_on_gold_tables_runs(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    traffic = gold(
        row(0, published=10, acknowledged=4, backlog=6, depth_time=START),
        row(1, published=1, dead_lettered=1),
        row(60, published=1, destination="paid"),
    )
    lake.gold.append(spark.createDataFrame(traffic), Tag("test", 1))
    lake.anomalies.append(spark.createDataFrame(anomalies(anomaly())), Tag("test", 1))
    models = run_models(
        spark,
        lambda source, name: f"delta.`{lake.table(f'{source}.{name}').location}`",
        EXAMPLES / "dbt",
    )
    assert models == {"destination_hours", "destination_health"}
    hours = spark.table("destination_hours").orderBy("hour", "destination")
    columns = ("destination", "published", "acknowledged", "dead_lettered", "backlog")
    assert [tuple(hour) for hour in hours.select(*columns).collect()] == [
        ("orders", 11, 4, 1, 6),
        ("paid", 1, 0, 0, None),
    ]
    health = spark.table("destination_health").select("destination", "backlog", "anomalies")
    assert [tuple(destination) for destination in health.collect()] == [
        ("orders", 6, 1),
        ("paid", None, 0),
    ]
    for name in models:
        spark.catalog.dropTempView(name)


def run_models(spark: SparkSession, source: Callable[[str, str], str], project: Path) -> set[str]:
    """Create a view for each model of a dbt project, in the order of their references, and check
    its tests `not_null`. Returns their names."""
    sources = yaml.safe_load((project / "models" / "sources.yml").read_text())
    declared = {
        (entry["name"], item["name"]) for entry in sources["sources"] for item in entry["tables"]
    }
    texts = {path.stem: path.read_text() for path in (project / "models").glob("*.sql")}
    models_run: set[str] = set()

    def declared_source(name: str, item: str) -> str:
        assert (name, item) in declared
        return source(name, item)

    def create(model: str) -> str:
        if model not in models_run:
            template = Environment(undefined=StrictUndefined).from_string(texts[model])
            rendered = template.render(source=declared_source, ref=create)
            spark.sql(f"CREATE OR REPLACE TEMP VIEW {model} AS {rendered}")
            models_run.add(model)
        return model

    for model in texts:
        create(model)
    for model in sources["models"]:
        for column in model["columns"]:
            assert column["data_tests"] == ["not_null"]
            assert spark.table(model["name"]).where(f"{column['name']} IS NULL").isEmpty()
    return models_run


def test_dag_is_valid() -> None:
    dag = load_dag(EXAMPLES / "airflow" / "sluicemq_lake.py")
    assert [task.task_id for task in dag.ordered()] == ["backfill", "maintain", "report"]
    for task in dag.tasks:
        parse(task.application_args)
        assert re.fullmatch(r"/opt/pipeline/.*/sluicemq/cli/__main__\.py", task.application)


def parse(arguments: list[str]) -> None:
    """Let the program parse its arguments, without running the command."""
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="sluicemq")
    words = list(arguments)
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, words)
        context = command.context_class(command, parent=context, info_name=name)
    command.make_parser(context).parse_args(args=words)
