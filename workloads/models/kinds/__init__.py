"""Kinds of blocks that a model's list may have, see ``listed.py``."""
