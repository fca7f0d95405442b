"""Jobs give what they gave before: twelve described ones with shortcuts and without, three others as they
are, and ten on a processor without its newer instructions.

Those of the catalog, with default settings, are in ``tests/goldens``; ``digests.py`` plays all jobs with all
settings.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.digests import SETTINGS, differences, digests, goldens
from tests.engine.ten_jobs import OTHERS
from tests.engine.twelve_jobs import TWELVE

#: All that this processor has beyond what numpy was built for: each picks other code of numpy.
FEATURES = """
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
print(*(name for name in __cpu_dispatch__ if __cpu_features__[name]))
"""


def _settings(number):
    """Of a job: nothing but single events, and five of the 14 others in turn, so that twelve jobs have each
    four times or more.
    """
    _, *between, bare = SETTINGS
    return bare, *(between[(5 * number + place) % len(between)] for place in range(5))


@pytest.mark.parametrize("name", TWELVE)
def test_a_described_job_with_shortcuts_and_without(name):
    job = TWELVE[name]()
    default = job.play(**SETTINGS[0]).result
    assert digests(default) == goldens()[name]
    for setting in _settings(list(TWELVE).index(name)):
        assert not differences(job.play(**setting).result, default, setting), setting


@pytest.mark.parametrize("name", OTHERS)
def test_packets_rated_clocks_and_a_recording(name):
    assert digests(OTHERS[name]()) == goldens()[name]


def test_numpy_of_another_processor_gives_the_same():
    root = Path(__file__).parents[2]

    def python(*arguments, **more):
        return subprocess.run(
            [sys.executable, *arguments], cwd=root, env={**os.environ, "PYTHONPATH": str(root), **more},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    features = python("-c", FEATURES).stdout.split()
    done = python("-m", "tests.engine.ten_jobs", NPY_DISABLE_CPU_FEATURES=" ".join(features))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "give what they gave before" in done.stdout
