"""Classes of the results that functions and methods of the public API return."""

from __future__ import annotations

from scrlm_dask.clusters.options import Connection
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.kernels.bandwidth.choose import Choice
from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial
from scrlm_dask.kernels.bandwidth.modularity import CutTrial, Levels
from scrlm_dask.kernels.bandwidth.representation import RepresentationTrial
from scrlm_dask.kernels.bandwidth.search import NullRadius, PerturbedRho
from scrlm_dask.kernels.evaluation.metrics import Recovery, Scores
from scrlm_dask.paper.compare import Comparison, MethodScores
from scrlm_dask.passes.digests import DamagedBlock
from scrlm_dask.pipeline.cut import ClusterCut
from scrlm_dask.pipeline.evaluate import Evaluation
from scrlm_dask.pipeline.export import ExportResult
from scrlm_dask.pipeline.ingest_job import IngestResult
from scrlm_dask.pipeline.inspect import RowsReport
from scrlm_dask.pipeline.plan import FitPlan, PhasePlan
from scrlm_dask.pipeline.predict import Prediction
from scrlm_dask.pipeline.rho import RhoScan
from scrlm_dask.pipeline.verify import Verification
from scrlm_dask.reporting.report import ReportFiles
from scrlm_dask.runs.lifecycle import FitResult
from scrlm_dask.storage.store_info import StoreInfo

__all__ = [
    "BandwidthTrial",
    "Choice",
    "ClusterCut",
    "Comparison",
    "Connection",
    "CutTrial",
    "DamagedBlock",
    "Evaluation",
    "ExportResult",
    "FitPlan",
    "FitResult",
    "IngestResult",
    "Levels",
    "MethodScores",
    "NullRadius",
    "PerturbedRho",
    "PhasePlan",
    "Prediction",
    "Recovery",
    "ReportFiles",
    "RepresentationTrial",
    "RhoScan",
    "RowsReport",
    "Scores",
    "StoreInfo",
    "Verification",
    "WorkerMemory",
]
