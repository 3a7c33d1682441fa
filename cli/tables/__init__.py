"""Results as tables for the terminal."""
