"""The paper's experiments: `run("bounds", "results/bounds", size="small")`.

Each cell of a grid is one task on the current Dask client, or of threads where there is none, and
is kept as soon as it is done: the same call again goes on.
"""

from __future__ import annotations

from scrlm_dask.experiments.catalog import NAMES
from scrlm_dask.experiments.experiment import SIZES, Size, Table
from scrlm_dask.experiments.run import Ran, run

__all__ = ["NAMES", "SIZES", "Ran", "Size", "Table", "run"]
