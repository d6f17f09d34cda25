"""Stand-ins for the two classes of Airflow that the example imports.

Airflow with its Spark provider has more than a hundred dependencies. These accept and keep the
arguments of the classes of Airflow 3 and of its Spark provider, as far as the example uses them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock


class Dag:
    """airflow.sdk.DAG."""

    current: ClassVar[Dag | None] = None

    def __init__(
        self,
        dag_id: str,
        *,
        schedule: str,
        start_date: datetime,
        catchup: bool,
        max_active_runs: int,
        default_args: Mapping[str, Any],
    ) -> None:
        self.dag_id = dag_id
        self.default_args = default_args
        self.tasks: list[SparkSubmit] = []

    def __enter__(self) -> Dag:
        Dag.current = self
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the DAG as the current one, which `load_dag` returns."""

    def ordered(self) -> list[SparkSubmit]:
        """Return the tasks of a chain in order."""
        followers = {task.follower for task in self.tasks}
        (task,) = (task for task in self.tasks if task not in followers)
        chain = [task]
        while chain[-1].follower is not None:
            chain.append(chain[-1].follower)
        assert len(chain) == len(self.tasks)
        return chain


class SparkSubmit:
    """SparkSubmitOperator."""

    def __init__(
        self,
        *,
        task_id: str,
        application: str,
        application_args: list[str],
        jars: str,
        conf: dict[str, str],
        env_vars: dict[str, str],
    ) -> None:
        self.task_id = task_id
        self.application = application
        self.application_args = application_args
        self.jars = jars
        self.conf = conf
        self.env_vars = env_vars
        self.follower: SparkSubmit | None = None
        assert Dag.current is not None, "outside of a DAG"
        Dag.current.tasks.append(self)

    def __rshift__(self, other: SparkSubmit) -> SparkSubmit:
        self.follower = other
        return other


def load_dag(path: Path, constants: Mapping[str, str] | None = None) -> Dag:
    """Return the DAG that a file defines, with other values of constants of that file."""
    source = path.read_text("utf-8")
    for name, value in (constants or {}).items():
        before, assignment, rest = source.partition(f"\n{name} = ")
        assert assignment, name
        source = before + assignment + repr(value) + "\n" + rest.partition("\n")[2]
    provider = "airflow.providers.apache.spark.operators.spark_submit"
    parts = provider.split(".")
    names = {".".join(parts[: count + 1]) for count in range(len(parts))} | {"airflow.sdk"}
    modules = {name: ModuleType(name) for name in names}
    vars(modules["airflow.sdk"])["DAG"] = Dag
    vars(modules[provider])["SparkSubmitOperator"] = SparkSubmit
    with mock.patch.dict(sys.modules, modules), mock.patch.object(Dag, "current", None):
        exec(compile(source, path, "exec"), {})
        assert Dag.current is not None
        return Dag.current
