"""Random tests are repeatable: the same code gets the same examples on every machine.

FUZZ=1 generates new and many more examples; a failure prints how to reproduce it. The campaign of
tests/fuzz/test_listeners.py is long then.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "fuzz", derandomize=False, deadline=None, print_blob=True, max_examples=1000
)
settings.load_profile("fuzz" if os.environ.get("FUZZ") else "steady")
