"""Measures the GPU that torch sees: what ``scripts/profile_gpu.py`` runs.  Imports torch when it measures."""
