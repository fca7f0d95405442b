"""Predicted against measured: readers of measurement files, errors by family."""
