"""Settings that must stand before scikit-learn and SciPy are imported."""

from __future__ import annotations

import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # else scikit-learn skips one of its checks
