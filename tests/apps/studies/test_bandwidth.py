"""The table of what a slower network costs; to trace and simulate its rows takes minutes and is no test."""

import pytest

from simcore.apps.studies.bandwidth import CLUSTER, GPUS, MODELS, NIC_GBITS_PER_S, BandwidthRow, table
from simcore.hardware import load_cluster
from tests.commands import simcore


def test_a_line_is_a_band_over_batch_sizes() -> None:
    found = [
        BandwidthRow("gpt2", batch, "fp32", 0.1, 0.1 * ratio, ratio, 1.192)
        for batch, ratio in ((2, 1.4), (4, 1.2))
    ]
    assert table(found).splitlines()[-1] == "| gpt2 | fp32 | 2, 4 | 100.0, 100.0 | 1.400, 1.200 | 1.192 |"


def test_the_fast_network_is_the_cluster_as_it_is() -> None:
    cluster = load_cluster(CLUSTER)
    assert cluster.num_gpus == GPUS
    per_node = [cluster.nics_per_node * gbits for gbits in NIC_GBITS_PER_S]
    assert per_node == [1600, 100]
    assert {name: model.measured for name, model in MODELS.items()} == {
        "vgg19": 1.091, "resnet152": 1.046, "bert-large": 1.276, "gpt2": 1.192
    }  # fmt: skip


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert simcore("bandwidth-study", "vgg91") == 2
    assert "did you mean 'vgg19'" in capsys.readouterr().err
