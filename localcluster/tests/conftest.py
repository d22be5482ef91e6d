"""How examples of property tests are drawn."""

from __future__ import annotations

import hypothesis

# How fast a machine is decides no test, and each run draws the same examples of the present code.
hypothesis.settings.register_profile(
    "localcluster",
    parent=hypothesis.settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    print_blob=True,
)
hypothesis.settings.load_profile("localcluster")
