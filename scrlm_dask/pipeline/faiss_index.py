"""An index of the centers for FAISS, where it is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from scrlm_dask.kernels.preprocessing import AffineMap
from scrlm_dask.model import Model


def faiss_index(model: Model) -> bytes | None:
    """A file's content, or None without FAISS or without centers.

    The index maps rows as the model does before it looks for their nearest center: rows go in as
    they are, and the numbers that come out are labels and squared distances of the model.
    """
    try:
        faiss = import_module("faiss")
    except ImportError:
        return None
    if model.n_clusters == 0:
        return None
    n_features = model.n_features
    chain = faiss.IndexPreTransform(faiss.IndexFlatL2(n_features))
    chain.prepend_transform(_transform(faiss, model.affine))
    chain.add(model.centers.astype(np.float32))
    content: bytes = faiss.serialize_index(chain).tobytes()
    return content


def _transform(faiss: Any, affine: AffineMap) -> Any:
    n_features = affine.n_features
    if affine.unit_length:
        return faiss.NormalizationTransform(n_features, 2.0)
    linear = faiss.LinearTransform(n_features, n_features, True)
    faiss.copy_array_to_vector(np.diag(affine.scale).astype(np.float32).ravel(), linear.A)
    faiss.copy_array_to_vector((-affine.shift * affine.scale).astype(np.float32), linear.b)
    linear.is_trained = True
    return linear
