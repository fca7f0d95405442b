"""Fixtures of this area."""

from tests.synthetic import two_stage_run

__all__ = ["two_stage_run"]
