"""Type names for the arrays of the graph and of the ledger.

Rows are nodes and columns are resources.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.int64]
Matrix: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

FULL_SHARE = 1 << 20
"""Weight of a type of which all is free, when nodes are compared by how empty they are."""
