"""Scores against true labels, and the rows and pairs that describe centers."""
