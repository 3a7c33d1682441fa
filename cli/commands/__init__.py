"""Subcommands of `scrlm`, grouped by topic."""
