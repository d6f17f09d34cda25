"""Random tests are repeatable: the same code meets the same examples, on every machine.

RANDOM_TESTS=1 looks for new ones; a failure then prints what reproduces it.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("random" if os.environ.get("RANDOM_TESTS") else "steady")
