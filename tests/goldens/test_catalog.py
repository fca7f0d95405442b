"""The catalog's workloads give what they gave before, to the picosecond."""

import json

import pytest

from tests.goldens.catalog import PATH, found, names


@pytest.mark.parametrize("name", names())
def test_same_step_to_the_picosecond(name):
    golden = json.loads(PATH.read_text(encoding="utf-8"))[name]
    assert found(name) == golden
