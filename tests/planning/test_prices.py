"""What GPUs cost: read from a file, by GPU or by cluster, and refused where it cannot be."""

from __future__ import annotations

import datetime

import pytest

from simcore.apps.prices import RunCost, read_prices
from simcore.errors import InputError
from simcore.hardware import load_cluster

HEAD = 'currency = "EUR"\nsource = "our contract"\ndate = 2026-03-01\n[per_gpu_hour]\n'
H100 = load_cluster("h100-16")


def written(tmp_path, text):
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_cluster_of_its_own_price_does_not_pay_that_of_its_gpu(tmp_path):
    text = HEAD + 'H100-SXM5-80GB = 2.5\n"h100-efa" = 3.0\n"h100-efa-32" = 2.75\n'
    clusters = [load_cluster(name) for name in ("h100-16", "h100-efa-16", "h100-efa-32")]
    prices = read_prices(written(tmp_path, text), clusters)
    assert [prices.gpu_hour(one) for one in clusters] == [2.5, 3.0, 2.75]
    assert (prices.currency, prices.date) == ("EUR", datetime.date(2026, 3, 1))
    # 16 GPUs at 2.50 an hour are 40 an hour; 1,000 tokens/s are 3.6 million tokens an hour.
    assert prices.per_million_tokens(clusters[0], 1000.0) == pytest.approx(40 / 3.6)


def test_a_gpu_is_known_by_its_profile_too(tmp_path):
    assert read_prices(written(tmp_path, HEAD + "h100-sxm = 2\n"), []).gpu_hour(H100) == 2.0


def test_prices_that_come_with_the_project_have_a_source_and_a_date():
    prices = read_prices("aws", [H100])
    assert prices.gpu_hour(H100) == pytest.approx(55.04 / 8)
    assert "us-east-1" in prices.source
    assert prices.date.year >= 2026


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (HEAD + "h100-sxm = -1\n", "per_gpu_hour"),
        (HEAD + "h100-sxm = nan\n", "h100-sxm: must be a finite number"),
        (HEAD + "h100-sxm = '3'\n", "per_gpu_hour"),
        (HEAD + "h100-smx = 1\n", "'h100-sxm'"),
        (HEAD + "h100-cheap = 1\n", "no GPU or cluster"),
        (HEAD + "h100-sxm = 1\nH100-SXM5-80GB = 2\n", "already"),
        (HEAD.replace("2026-03-01", "'last spring'"), "date"),
        (HEAD.replace("currency", "curency"), "'currency'"),
        (HEAD.replace('source = "our contract"\n', ""), "'source' is missing"),
        ("prices", "prices.toml"),
    ],
)
def test_prices_that_cannot_be_are_refused(tmp_path, text, named):
    with pytest.raises(InputError, match=named):
        read_prices(written(tmp_path, text), [H100])


def test_what_has_no_price_or_no_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no price of H100-SXM5-80GB, only of A100-SXM4-80GB"):
        read_prices(written(tmp_path, HEAD + "a100-80 = 1\n"), [H100]).gpu_hour(H100)
    with pytest.raises(InputError, match="'aws'"):
        read_prices("was", [H100])
    with pytest.raises(InputError, match=r"absent\.toml"):
        read_prices(str(tmp_path / "absent.toml"), [H100])


def test_what_a_job_costs_reads_without_exponents():
    prices = read_prices("aws", [H100])
    long = RunCost(15e12, "tokens", 422_260.4, 274.9, 2_904_870.0, prices)
    assert long.line().startswith("15T tokens: 422,300 GPU-hours in 274.9 days, 2,905,000 USD (")
    assert RunCost(1e9, "samples", 0.4597, 0.0011972).line() == "1B samples: 0.4597 GPU-hours in 103.4 s"
    assert "in 12 hours" in RunCost(1e9, "samples", 96, 0.5).line()  # 8 GPUs
