"""Scores against true labels, closest pairs of centers, and prototype rows."""
