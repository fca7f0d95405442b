"""Blocks of layers, one file each."""
