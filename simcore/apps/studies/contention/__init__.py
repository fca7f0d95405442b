"""Kernels beside communication: predicted slowdown against recorded and published ones."""
