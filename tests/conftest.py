"""What holds for every test: one numeric thread a worker, and no stop-watch on shared machines."""

from __future__ import annotations

import os

import hypothesis

# Workers of pytest-xdist share the cores; more threads each would only get in each other's way. Results do not depend
# on it (tests/engine proves that), and it has to be said before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("shared", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("shared")
