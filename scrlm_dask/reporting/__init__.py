"""HTML reports and plots of runs."""
