"""A run, or several, as a page for people."""
