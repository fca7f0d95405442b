"""Fixtures that several areas share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.synthetic import write_two_stage_run


@pytest.fixture
def two_stage_run(tmp_path: Path) -> Path:
    """Folder of the run that :mod:`tests.synthetic` draws."""
    out_dir = tmp_path / "two-stages"
    write_two_stage_run(out_dir)
    return out_dir
