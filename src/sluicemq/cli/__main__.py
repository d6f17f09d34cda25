"""`python -m sluicemq.cli` is the same as `sluicemq`."""

from __future__ import annotations

from sluicemq.cli.main import run

if __name__ == "__main__":
    run()
