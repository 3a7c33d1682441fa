"""The `scrlm` command: parse, call the pipeline, print. No formula lives here."""
