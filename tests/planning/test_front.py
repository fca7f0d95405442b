"""Several numbers of GPUs: what more of them bring, and how few will do."""

from __future__ import annotations

import json

import pytest

from simcore.apps.amounts import Amount, amount_of, numbers_of_gpus, seconds_of
from simcore.apps.plan.asking import OBJECTIVES, checked_objective, clusters_asked
from simcore.apps.plan.command import plan
from simcore.apps.plan.front import Front, Size, marked
from simcore.apps.plan.fronts import non_dominated
from simcore.errors import InputError


def test_amounts_are_as_users_write_them():
    assert numbers_of_gpus("512, 64,64") == [64, 512]
    assert [amount_of(said, None) for said in ("15T", "1.5b", "7")] == [
        Amount(number, "tokens") for number in (15e12, 1.5e9, 7.0)
    ]
    assert amount_of(None, "4.2B") == Amount(4.2e9, "samples")
    assert amount_of(None, None) is None
    assert (seconds_of("2d"), seconds_of("1.5h"), seconds_of("30m")) == (172_800.0, 5400.0, 1800.0)


@pytest.mark.parametrize("text", ["", "0", "64,", "-8", "a", "64;8", "8.5"])
def test_what_is_no_number_of_gpus_is_refused(text):
    with pytest.raises(InputError, match="--gpus"):
        numbers_of_gpus(text)


@pytest.mark.parametrize("text", ["", "T", "0T", "1e12", "15X", "-1T", "nan"])
def test_what_is_no_number_of_tokens_is_refused(text):
    for option, said in (("--tokens", (text, None)), ("--samples", (None, text))):
        with pytest.raises(InputError, match=option):
            amount_of(*said)


def test_an_amount_is_what_the_job_counts():
    # 1,000 samples of 4,096 tokens; a recommender's samples are one thing each and have no tokens.
    assert Amount(1000, "samples").of("tokens", 4096) == 4_096_000
    assert Amount(1000, "samples").of("samples", 1) == Amount(1000, "tokens").of("tokens", 4096) == 1000
    for amount, counted, seq, told in (
        (Amount(1, "tokens"), "samples", 1, "nearest: --samples"),
        (Amount(1, "samples"), "tokens", 0, "nearest: --tokens"),
    ):
        with pytest.raises(InputError, match=told):
            amount.of(counted, seq)
    with pytest.raises(InputError, match="leave one out"):
        amount_of("1T", "1B")


@pytest.mark.parametrize(
    ("cluster", "gpus", "gpu", "more", "named"),
    [
        ("h100-16", "8", None, {}, "--cluster"),
        (None, None, "h800", {}, "--gpu needs --gpus"),
        (None, "8", None, {"deadline": "1d"}, "--deadline needs --tokens"),
        (None, "8,16", None, {"tornado": True}, "--tornado"),
        (None, "8", "h1000,a100", {}, "h100"),
    ],
)
def test_options_that_contradict_each_other_are_refused(cluster, gpus, gpu, more, named):
    with pytest.raises(InputError, match=named):
        clusters_asked(cluster, gpus, gpu, **{"deadline": None, "amount": None, "tornado": False, **more})


def size(gpus: int, tokens_per_s: float, per_million: float | None = None) -> Size:
    return Size(f"h100-{gpus}", gpus, "dp", 1.0, tokens_per_s, 0.0, 1e9, per_million)


def test_the_fewest_gpus_that_meet_the_deadline():
    # 1e9 tokens: 1000, 500 and 400 s.
    sizes = (size(8, 1e6), size(16, 2e6), size(32, 2.5e6))
    assert Front(sizes, 500.0).fewest == sizes[1]
    assert Front(sizes, 399.0).fewest is None
    assert Front(sizes).fewest is None
    assert sizes[1].gpu_hours == pytest.approx(16 * 500 / 3600)
    assert any("none of these" in line for line in Front(sizes, 399.0).lines())


def test_the_objective_chooses_among_those_in_time():
    # 1,000, 500 and 400 s for 1e9 tokens, of which a million costs 1.0, 1.2 and 1.5.
    sizes = (size(8, 1e6, 1.0), size(16, 2e6, 1.2), size(32, 2.5e6, 1.5))
    chosen = {
        (objective, deadline_s): Front(sizes, deadline_s, objective).best.gpus
        for objective in OBJECTIVES
        for deadline_s in (None, 600.0, 1.0)
    }
    assert chosen == {
        ("time", None): 32, ("time", 600.0): 32, ("time", 1.0): 32,
        ("cost", None): 8, ("cost", 600.0): 16, ("cost", 1.0): 8,
        ("gpus", None): 8, ("gpus", 600.0): 16, ("gpus", 1.0): 8,
    }  # fmt: skip
    assert Front((), None).best is None
    assert sizes[1].cost == pytest.approx(1200.0)  # 1e9 tokens are a thousand millions


def test_what_is_no_better_in_anything_is_needless():
    # The second has twice the GPUs of the first and is slower; the third is quicker; the fourth only cheaper.
    sizes = (size(8, 2.0, 1.0), size(16, 1.9, 1.0), size(32, 2.5, 1.1), size(64, 2.4, 0.9))
    assert [one.needless for one in marked(sizes)] == [False, True, False, False]
    assert non_dominated([(1, 2), (1, 2), (2, 1), (2, 2)], lambda point: point) == [(1, 2), (2, 1)]


def test_objectives_that_cannot_be_are_refused():
    for objective, named in (("energy", "not modelled"), ("tme", "'time'"), ("cost", "--prices")):
        with pytest.raises(InputError, match=named):
            checked_objective(objective, priced=False)
    checked_objective("cost", priced=True)


def test_more_gpus_are_planned_for_with_one_batch(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = ["model.layers=4", "training.seq=2048", "training.global_batch=32"]
    more = {"tokens": "1B", "deadline": "1d", "prices": "aws", "objective": "cost", "as_json": True}
    plan("llama3-8b", gpus="16,8", search="tp=1:2", settings=job, **more)
    found = json.loads(capsys.readouterr().out)
    small, large = found["front"]
    assert (small["gpus"], large["gpus"]) == (8, 16)
    # 32 samples of 2,048 tokens on both.
    for row in (small, large):
        assert row["tokens_per_s"] == pytest.approx(32 * 2048 / row["step_time_s"])
        assert row["seconds"] == pytest.approx(1e9 / row["tokens_per_s"])
        assert not row["dominated"]
        # hardware_profiles/prices/aws.toml: 6.88 USD an hour for each GPU.
        assert row["cost"] == pytest.approx(row["gpu_hours"] * 6.88)
        assert row["cost_per_million_tokens"] == pytest.approx(row["cost"] / 1e3)
    cheapest = min(found["front"], key=lambda row: row["cost"])
    assert found["best"]["job"]["cluster"] == cheapest["cluster"]
    assert found["fewest_gpus"] == (8 if small["seconds"] <= 86400 else 16)
    assert {path.name for path in (tmp_path / "plans").iterdir()} == {"llama3-8b-h100-8", "llama3-8b-h100-16"}
