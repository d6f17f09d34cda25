"""Build variant: pure Python, or with the modules named in setup.py compiled."""

from __future__ import annotations

from typing import Final

from sluicemq.broker import broker

COMPILED: Final = broker.__file__.endswith(".so")
