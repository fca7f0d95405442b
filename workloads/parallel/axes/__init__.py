"""Axes of parallelism, one file each."""
