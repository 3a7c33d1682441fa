"""Data of a report of the run that is computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from scrlm_dask.reporting.report_data import ReportData, read_report_data


@pytest.fixture(scope="session")
def found(run_by_hand: Path) -> ReportData:
    return read_report_data(run_by_hand, rows_each=2)
