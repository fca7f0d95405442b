"""Several numbers of GPUs: what more of them bring, and how few will do."""

from __future__ import annotations

import json

import pytest

from simcore.apps.plan.amounts import numbers_of_gpus, seconds_of, tokens_of
from simcore.apps.plan.asking import clusters_asked
from simcore.apps.plan.command import plan
from simcore.apps.plan.front import Front, Size
from simcore.errors import InputError


def test_amounts_are_as_users_write_them():
    assert numbers_of_gpus("512, 64,64") == [64, 512]
    assert (tokens_of("15T"), tokens_of("1.5b"), tokens_of("7")) == (15e12, 1.5e9, 7.0)
    assert (seconds_of("2d"), seconds_of("1.5h"), seconds_of("30m")) == (172_800.0, 5400.0, 1800.0)


@pytest.mark.parametrize("text", ["", "0", "64,", "-8", "a", "64;8", "8.5"])
def test_what_is_no_number_of_gpus_is_refused(text):
    with pytest.raises(InputError, match="--gpus"):
        numbers_of_gpus(text)


@pytest.mark.parametrize("text", ["", "T", "0T", "1e12", "15X", "-1T", "nan"])
def test_what_is_no_number_of_tokens_is_refused(text):
    with pytest.raises(InputError, match="--tokens"):
        tokens_of(text)


@pytest.mark.parametrize(
    ("cluster", "gpus", "gpu", "more", "named"),
    [
        ("h100-16", "8", None, {}, "--cluster"),
        (None, None, "h800", {}, "--gpu needs --gpus"),
        (None, "8", None, {"deadline": "1d"}, "--deadline needs --tokens"),
        (None, "8,16", None, {"tornado": True}, "--tornado"),
    ],
)
def test_options_that_contradict_each_other_are_refused(cluster, gpus, gpu, more, named):
    with pytest.raises(InputError, match=named):
        clusters_asked(cluster, gpus, gpu, **{"deadline": None, "tokens": None, "tornado": False, **more})


def size(gpus: int, tokens_per_s: float, needless: bool = False) -> Size:
    return Size(gpus, "dp", 1.0, tokens_per_s, 1e9 / tokens_per_s, 0.0, needless)


def test_the_fewest_gpus_that_meet_the_deadline():
    # 1e9 tokens: 1000, 500 and 400 s.
    sizes = (size(8, 1e6), size(16, 2e6), size(32, 2.5e6))
    assert Front(sizes, 1e9, 500.0).fewest == sizes[1]
    assert Front(sizes, 1e9, 399.0).fewest is None
    assert Front(sizes, 1e9, None).fewest is None
    assert sizes[1].gpu_hours == pytest.approx(16 * 500 / 3600)
    assert "none of these" in Front(sizes, 1e9, 399.0).lines()[-1]


def test_more_gpus_are_planned_for_with_one_batch(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = ["model.layers=4", "training.seq=2048", "training.global_batch=32"]
    plan("llama3-8b", gpus="16,8", search="tp=1:2", settings=job, tokens="1B", deadline="1d", as_json=True)
    found = json.loads(capsys.readouterr().out)
    small, large = found["front"]
    assert (small["gpus"], large["gpus"]) == (8, 16)
    # 32 samples of 2,048 tokens on both.
    for row in (small, large):
        assert row["tokens_per_s"] == pytest.approx(32 * 2048 / row["step_time_s"])
        assert row["seconds"] == pytest.approx(1e9 / row["tokens_per_s"])
        assert not row["dominated"]
    assert found["fewest_gpus"] == (8 if small["seconds"] <= 86400 else 16)
    assert {path.name for path in (tmp_path / "plans").iterdir()} == {"llama3-8b-h100-8", "llama3-8b-h100-16"}
