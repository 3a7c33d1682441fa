"""Accepted values of settings, shared by the package and the command line.

This module imports no large package, so that `--help` is fast.
"""

from __future__ import annotations

from typing import Literal, get_args

Preprocess = Literal["none", "center", "standardize", "scale", "l2"]
FitPreprocess = Literal["auto", "none", "center", "standardize", "scale", "l2"]
Level = Literal["coarse", "fine"]
Persist = Literal["auto", "yes", "no"]
Init = Literal["scrlm", "k-means++", "k-means||", "random", "given"]
Extraction = Literal["auto", "greedy", "residual", "merge"]
FeatureDtype = Literal["float16", "float32"]
NanRows = Literal["error", "drop", "keep"]
ZeroRows = Literal["keep", "drop"]
DamagedItems = Literal["refuse", "skip"]
TableFormat = Literal["parquet", "csv"]

PREPROCESS_KINDS: tuple[str, ...] = get_args(Preprocess)
FIT_PREPROCESS_KINDS: tuple[str, ...] = get_args(FitPreprocess)
LEVELS: tuple[str, ...] = get_args(Level)
PERSIST_KINDS: tuple[str, ...] = get_args(Persist)
INIT_KINDS: tuple[str, ...] = get_args(Init)
CHOSEN_INITS = tuple(kind for kind in INIT_KINDS if kind != "given")
EXTRACTIONS: tuple[str, ...] = get_args(Extraction)
FEATURE_DTYPES: tuple[str, ...] = get_args(FeatureDtype)
NAN_ROWS: tuple[str, ...] = get_args(NanRows)
ZERO_ROWS: tuple[str, ...] = get_args(ZeroRows)
DAMAGED_ITEMS: tuple[str, ...] = get_args(DamagedItems)
TABLE_FORMATS: tuple[str, ...] = get_args(TableFormat)

# Formats that `ingest` reads, in the order in which they are detected.
INGEST_FORMATS = (
    *("npy", "npz", "bin", "vecs", "hdf5", "parquet", "arrow", "csv", "raw", "zarr"),
    *("clip-retrieval", "huggingface"),
)

LOCAL, SSH, KUBERNETES = "local", "ssh", "kubernetes"
JOB_QUEUES = ("slurm", "pbs", "sge", "lsf", "htcondor")
CLUSTER_KINDS = (LOCAL, *JOB_QUEUES, SSH, KUBERNETES)
