"""What would fit instead: each variant is tried, the mildest first."""

from __future__ import annotations

import pytest

from workloads.jobs import Description, complete, what_fits
from workloads.jobs.advice import peak_bytes


def job(content: dict, num_gpus: int = 8) -> Description:
    return complete(content, "job", num_gpus=num_gpus)


@pytest.mark.parametrize("micro_batch", [1, 8])
def test_advice_was_tried(micro_batch):
    training = {"seq": 8192, "global_batch": 128, "micro_batch": micro_batch}
    made = job({"model": "llama3-70b", "parallel": {"tp": 4}, "training": training}, num_gpus=64)
    available = 78 * 2**30
    assert peak_bytes(made) > available
    lines = what_fits(made, available)
    assert lines[0].startswith("would fit: --set ")
    for line in lines:
        changes = dict(word.split("=") for word in line.partition("(")[0].split() if "=" in word)
        content = {"model": "llama3-70b", "parallel": {"tp": 4}, "training": training}
        again = complete(content, "job", overrides=changes, num_gpus=64)
        assert peak_bytes(again) <= available


def test_advice_runs_no_more_again_than_it_must():
    parallel = {"tp": 4, "pp": 4}
    made = job({"model": "llama3-70b", "parallel": parallel}, num_gpus=64)
    lines = what_fits(made, int(76.5 * 2**30))
    assert any("[mlp]" in line for line in lines)
    # 20 layers a stage: a quarter of them is enough, and all are the last resort.
    assert any("training.recompute=full --set training.recompute_layers=5" in line for line in lines)
    assert any("training.recompute=full (" in line for line in lines)


def test_advice_names_more_gpus_where_nothing_fits_on_as_many():
    content = {"model": "llama3-70b", "parallel": {"tp": 8}, "training": {"seq": 8192, "global_batch": 8}}
    available = 78 * 2**30
    _, line = what_fits(job(content, num_gpus=8), available)
    assert line.startswith("would fit on 16 GPUs: --set parallel.pp=2")
    changes = dict(word.split("=") for word in line.partition("(")[0].split() if "=" in word)
    again = complete(content, "job", overrides=changes, num_gpus=16)
    assert again.parallel.world_size == 16
    assert peak_bytes(again) <= available


def test_more_gpus_for_tables_hold_fewer_rows_each_and_sums_of_all_samples():
    # A rank of n holds 1/n of 12 trillion columns in fp16 (22 TB, so 45 GB of 512), and sums of 64 tables'
    # 256 columns for all samples: as many samples on each of 512 would be 2.1 million, 64 GiB of sums.
    made = job({"model": "dlrm-12t", "training": {"micro_batch": 4096}}, num_gpus=16)
    available = 78 * 2**30
    _, line = what_fits(made, available)
    assert line.startswith(
        "would fit on 512 GPUs: --set training.global_batch=65536 --set training.micro_batch=128 ("
    )
    content = {"model": "dlrm-12t", "training": {"global_batch": 65536}}
    assert peak_bytes(job(content, num_gpus=512)) <= available < peak_bytes(job(content, num_gpus=256))
