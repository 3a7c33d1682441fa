"""How a pass runs: blocks, tree reduction, checkpoints, read-ahead, failures, workers."""
