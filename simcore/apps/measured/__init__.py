"""Measured rows: files of kernels, collectives and published runs, each row with what is predicted of it."""
