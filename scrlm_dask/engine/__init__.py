"""Execution of passes: blocks, tree reduction, checkpoints, prefetching, failures, workers."""
