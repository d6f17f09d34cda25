"""Which build this is: Python throughout, or with the modules that setup.py names compiled."""

from __future__ import annotations

from typing import Final

from sluicemq.broker import engine

COMPILED: Final = engine.__file__.endswith(".so")
