"""Base class of both estimators: NumPy labels for NumPy input, lazy labels for other input.

The pipeline is imported on first use, so that importing an estimator is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state, estimator_html_repr
from sklearn.utils.validation import check_is_fitted, validate_data

from scrlm_dask.model import Model
from scrlm_dask.storage.locations import Location, Options
from scrlm_dask.storage.masks import remove_mask

if TYPE_CHECKING:
    from scrlm_dask.engine.features import FeaturesLike
    from scrlm_dask.runs.lifecycle import FitResult


class Clusterer(ClusterMixin, BaseEstimator):
    """Base class that labels rows with a fitted `Model`.

    NumPy input gives NumPy labels; for other input the labels are a lazy Dask array.
    """

    block_rows: int | None
    model_: Model
    record_: dict[str, Any]

    def _repr_html_(self) -> str:
        """Return scikit-learn's diagram as HTML; after a fit, followed by the result."""
        from scrlm_dask.runs.lifecycle import FitResult

        diagram = str(estimator_html_repr(self))
        if not hasattr(self, "model_"):
            return diagram
        return f"{diagram}<br>{FitResult(self.model_, None, self.record_)._repr_html_()}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:  # scikit-learn can be configured to show only text
            bundle["text/html"] = self._repr_html_()
        return bundle

    def predict(
        self, X: FeaturesLike, *, storage_options: Options | None = None
    ) -> NDArray[np.int32] | da.Array:
        """Label rows with the fitted clusters.

        Parameters
        ----------
        X : str, Path, FeatureStore, zarr.Array, dask.array.Array or array of shape (rows, p)
            Features. A path or URL must point to a features store or a Zarr array.
        storage_options : dict or None
            fsspec options used to open URLs. They are neither printed nor saved.

        Returns
        -------
        numpy.ndarray or dask.array.Array of shape (rows,)
            Cluster of each row (SCRLM: -1 for outliers); lazy unless the input is a NumPy array.

        Raises
        ------
        InputError
            If X has another number of features than the fitted data.

        Examples
        --------
        >>> from scrlm_dask import SCRLM
        >>> model = SCRLM(n_clusters=6, rho=0.5).fit("features.zarr")
        >>> model.predict("new.zarr").compute().shape
        (500,)
        """
        from scrlm_dask.pipeline.predict import predict

        check_is_fitted(self)
        if is_lazy(X):
            return self._lazy(X, storage_options)
        X = self._validated(X, reset=False)
        prediction = predict(self.model_, X, collect_labels=True, block_rows=self.block_rows)
        assert prediction.labels is not None
        return prediction.labels

    def _store(self, result: FitResult, X: FeaturesLike, storage_options: Options | None) -> None:
        self.model_ = result.model
        self.record_ = result.record
        self.cluster_centers_ = result.model.centers
        self.inertia_ = result.model.inertia
        self.n_features_in_ = result.model.n_features
        self.n_iter_ = len(result.record.get("kmeans", {}).get("iterations", ()))
        labels = result.labels
        self.labels_ = self._lazy(X, storage_options) if labels is None else labels

    def _lazy(self, X: FeaturesLike, storage_options: Options | None) -> da.Array:
        from scrlm_dask.engine.features import as_features
        from scrlm_dask.passes.assign import lazy_labels
        from scrlm_dask.pipeline.predict import center_points, check_width
        from scrlm_dask.storage.feature_store import check_features_like

        # a Dask array keeps its own chunks, so that labels align with it
        if isinstance(X, da.Array):
            array = X
        else:
            array = as_features(X, self.block_rows, storage_options).array
        check_features_like(array.shape, array.dtype, "the input")
        check_width(self.model_, array.shape[1], "the input")
        return lazy_labels(array, center_points(self.model_), self.model_.sq_radius)

    def _validated(self, X: object, *, reset: bool) -> NDArray[Any]:
        """Validate an in-memory array with scikit-learn, which would load lazy input."""
        floats = [np.float64, np.float32, np.float16]
        X = remove_mask(X, "the array")  # scikit-learn ignores the mask
        checked: NDArray[Any] = validate_data(self, X, reset=reset, dtype=floats)
        return checked


def is_lazy(X: object) -> bool:
    """Return whether the input is a path, a features store, a Zarr array or a Dask array."""
    has_location = isinstance(getattr(X, "location", None), Location)  # a FeatureStore
    return has_location or isinstance(X, str | Path | Location | zarr.Array | da.Array)


def seed_of(random_state: Any) -> int:
    """Return an integer seed; return an integer unchanged, so that the record contains it."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))
