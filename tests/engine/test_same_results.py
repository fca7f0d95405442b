"""Twelve described jobs and the catalog's give what they gave before, with every shortcut and without."""

import pytest

from tests.engine.digests import SETTINGS, differences, digests, goldens
from tests.engine.twelve_jobs import TWELVE, from_catalog
from workloads import catalog

#: Takes as long as all the others: ``tests/engine/digests.py --all-settings`` plays it.
LARGE = "scale-gpt-175b-pp16-tp8-dp1024"


@pytest.mark.parametrize("name", TWELVE)
def test_a_described_job_with_all_settings(name):
    job = TWELVE[name]()
    default = job.play(**SETTINGS[0]).result
    assert digests(default) == goldens()[name]
    for setting in SETTINGS[1:]:
        assert not differences(job.play(**setting).result, default, setting), setting


@pytest.mark.parametrize("name", [name for name in catalog.names() if name != LARGE])
def test_a_job_of_the_catalog(name):
    assert digests(from_catalog(name).play().result) == goldens()[name]
