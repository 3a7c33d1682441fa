"""The `scrlm` command: parse options, call the package, print results."""
