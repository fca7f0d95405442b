"""Fits of constants to measurements: kernels, collectives, clocks, a GPU's own profile."""
