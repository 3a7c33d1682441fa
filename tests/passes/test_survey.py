"""The survey pass: moments of all rows and the features of the candidates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from backends import backend
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import expecting

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import as_features
from scrlm_dask.errors import InputError
from scrlm_dask.events import BlockDone
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.passes.survey import candidates_from, moments_of, survey_pass

X = np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 7.0], [6.0, 3.0], [8.0, 3.0]])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


@settings(max_examples=10)
@given(block_rows=st.integers(1, 5), rows=st.sets(st.integers(0, 4)))
def test_survey_does_not_depend_on_the_blocks(block_rows: int, rows: set[int]) -> None:
    chosen = np.array(sorted(rows), np.int64)
    with Execution(lambda event: None) as execution:
        features = as_features(X, block_rows)
        survey = survey_pass(execution, features, chosen, with_moments=True)
        np.testing.assert_array_equal(survey.compute().gathered, X[chosen])
        moments = moments_of(survey)
    assert moments is not None
    # The means are 4 and 3; m2 is 16 + 4 + 0 + 4 + 16 and 4 + 4 + 16 + 0 + 0.
    assert moments.count == 5
    np.testing.assert_allclose(moments.mean, [4.0, 3.0])
    np.testing.assert_allclose(moments.m2, [40.0, 24.0])


@pytest.mark.parametrize(
    ("with_moments", "blocks", "read"), [(True, None, 5), (False, None, 3), (False, [0, 1, 2], 5)]
)
def test_only_the_required_blocks_are_read(
    with_moments: bool, blocks: list[int] | None, read: int
) -> None:
    events: list[Any] = []
    with Execution(events.append) as execution:
        survey = survey_pass(
            execution, as_features(X, 2), np.array([1, 4]), with_moments, blocks=blocks
        )
        assert (moments_of(survey) is not None) == with_moments
    assert sum(event.rows for event in events if isinstance(event, BlockDone)) == read


def test_candidates_are_the_gathered_rows_in_model_units() -> None:
    rows = np.array([1, 2])
    affine = AffineMap("none", np.zeros(2), np.array([1.0, 2.0]))
    with Execution(lambda event: None) as execution:
        survey = survey_pass(execution, as_features(X, 2), rows, with_moments=False)
        found = candidates_from(survey, rows, affine).compute()
    np.testing.assert_array_equal(found.points.raw, X[[1, 2]])
    assert found.rows.tolist() == [1, 2]
    difference = found.points.mapped[1] - found.points.mapped[0]
    np.testing.assert_allclose(difference, [2.0, 2 * 6.0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e37])
def test_error_names_the_candidate_that_is_not_finite(value: float) -> None:
    x = X.copy()
    x[3, 1] = value
    with (
        Execution(lambda event: None) as execution,
        pytest.raises(InputError, match=expecting("row 3", "block 1")),
    ):
        survey_pass(execution, as_features(x, 2), np.array([0, 3]), with_moments=False)
