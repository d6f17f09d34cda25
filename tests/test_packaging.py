"""Dependencies of an installation, and imports of the program."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires

HEAVY = ("pyspark", "pyarrow", "pandas", "numpy", "delta-spark", "matplotlib")
"""Dependencies that only the pipeline needs."""


def test_the_broker_installs_without_spark() -> None:
    requirements = requires("sluicemq") or []
    pipeline = [requirement for requirement in requirements if requirement.startswith(HEAVY)]
    assert any(requirement.startswith("pyspark") for requirement in pipeline)
    assert all('extra == "pipeline"' in requirement for requirement in pipeline), pipeline


def test_the_program_starts_without_spark() -> None:
    program = (
        "import sys; import sluicemq.cli.main, sluicemq.server.run; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"
