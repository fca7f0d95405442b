"""Twelve described jobs give what they gave before, with every shortcut and without.

Those of the catalog, with default settings, are in ``tests/goldens``; ``digests.py`` plays them with all.
"""

import pytest

from tests.engine.digests import SETTINGS, differences, digests, goldens
from tests.engine.twelve_jobs import TWELVE


@pytest.mark.parametrize("name", TWELVE)
def test_a_described_job_with_all_settings(name):
    job = TWELVE[name]()
    default = job.play(**SETTINGS[0]).result
    assert digests(default) == goldens()[name]
    for setting in SETTINGS[1:]:
        assert not differences(job.play(**setting).result, default, setting), setting
