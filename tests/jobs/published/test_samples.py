"""Rows of samples: images as rows of tables become descriptions, and what a step of them took."""

from __future__ import annotations

import pytest

from simcore.apps.measured.runs.predict import predict_case
from simcore.errors import InputError
from simcore.hardware import load_gpu
from workloads.jobs.presets import load_preset
from workloads.jobs.published import RunRow, describe, measured_step_s
from workloads.jobs.published.columns import as_run
from workloads.models.listed import BlockModel

#: Row vis-1581 of huggingface/pytorch-image-models, results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv.
_TIMM = {
    "id": "v1", "source": "huggingface/pytorch-image-models", "phase": "train", "family": "vit",
    "model": "vit_base_patch16_224", "gpu": "RTX-3090", "num_gpus": "1", "num_nodes": "1",
    "framework": "pytorch 1.12 cu113", "compile": "eager", "precision": "amp", "layout": "nhwc",
    "img_size": "224", "batch_per_gpu": "192", "global_batch": "192", "throughput_img_s": "392.99",
    "step_ms": "487.729", "quality": "A",
}  # fmt: skip


def _row(**changes: str) -> RunRow:
    return RunRow(2, as_run({**_TIMM, **changes}))


def _step_s(row: RunRow) -> float:
    (case,) = describe(row).cases
    return measured_step_s(row, case.model, load_gpu("rtx3090"))


def test_a_row_of_images_names_an_architecture_and_a_batch() -> None:
    (case,) = describe(_row()).cases
    assert isinstance(case.model, BlockModel)
    assert (case.training.micro_batch, case.training.global_batch) == (192, 192)
    assert case.training.trainable == "all"
    assert case.software.channels_last


def test_the_phase_says_whether_weights_are_trained() -> None:
    (case,) = describe(_row(phase="infer")).cases
    assert case.training.trainable == "none"
    # timm's inference alone has norms over channels in 16 bits.
    assert case.software.narrow_norms
    assert not describe(_row()).cases[0].software.narrow_norms


@pytest.mark.parametrize(("gpu", "slower"), [("A100-SXM-80GB", 1.0), ("V100-16GB", 1.5)])
def test_small_batches_wait_for_the_host_of_their_gpus(gpu: str, slower: float) -> None:
    said = {
        "source": "NVIDIA/DeepLearningExamples", "model": "efficientnet-b0", "framework": "PyTorch",
        "source_path": "PyTorch/Classification/ConvNets/efficientnet/README.md", "family": "cnn",
    }  # fmt: skip
    (case,) = describe(_row(**said, phase="infer", gpu=gpu, batch_per_gpu="1", global_batch="1")).cases
    assert case.software.name == "nvidia-convnets"
    usual = load_preset("nvidia-convnets").values("software")["host_us_per_kernel"]
    assert case.software.host_us_per_kernel == slower * usual
    assert not case.software.narrow_norms


def test_a_step_is_the_time_of_a_batch_or_its_samples_over_their_rate() -> None:
    assert _step_s(_row()) == pytest.approx(0.487729)
    assert _step_s(_row(step_ms="")) == pytest.approx(192 / 392.99)
    with pytest.raises(InputError, match="v1: neither step_ms nor a rate of samples"):
        _step_s(_row(step_ms="", throughput_img_s=""))


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match="'vit_nobody' is no architecture"):
        describe(_row(model="vit_nobody"))
    with pytest.raises(InputError, match="no profile for GPU 'TPU v3'"):
        describe(_row(gpu="TPU v3"))


def test_a_row_is_predicted_from_its_words() -> None:
    (case,) = describe(_row()).cases
    assert predict_case(case) == pytest.approx(0.487729, rel=0.08)
