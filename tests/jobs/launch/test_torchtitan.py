"""torchtitan's flags and TOML files: written, read back, and read as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.errors import InputError
from workloads.jobs import Description, complete
from workloads.jobs.launch import emitted, read_launch
from workloads.jobs.launch.dialect import settled


@st.composite
def jobs(draw: st.DrawFn) -> Description:
    """Jobs that torchtitan has keys for."""
    tp, cp, pp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 2), (1, 2, 4)))
    dp, micro = draw(st.sampled_from([2, 4])), draw(st.sampled_from([1, 2]))
    parallel: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp, "dp": dp}
    if pp > 1:
        parallel["schedule"], parallel["virtual_stages"] = draw(
            st.sampled_from([("1f1b", 1), ("gpipe", 1), ("1f1b", 2), ("1f1b", 4), ("gpipe", 2), ("zb_v", 2)])
        )
        # 32 layers on 2 and 4 stages, and with both ends as layers: 34 on 2.
        if pp * parallel["virtual_stages"] == 2 and draw(st.booleans()):
            parallel |= {"embedding_as_layer": True, "head_as_layer": True}
    if draw(st.booleans()):
        parallel["dp_shard"] = 2
    training: dict[str, Any] = {
        "seq": 4096, "micro_batch": micro, "global_batch": micro * dp * pp * 2, "sharding": "fsdp2",
        "recompute": draw(st.sampled_from(["none", "full", "ops"])),
        "reshard_after_forward": draw(st.booleans()), "tp_overlap": tp > 1 and draw(st.booleans()),
    }  # fmt: skip
    model = draw(st.sampled_from(["llama3-8b", "qwen3-32b"] if cp == 1 else ["llama3-8b"]))
    software = draw(st.sampled_from(["torchtitan-0.3", "torchtitan-0.3-eager"]))
    said = {"model": model, "parallel": parallel, "training": training, "software": software}
    return complete(said, "drawn", num_gpus=tp * cp * pp * dp)


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_flags_read_back_are_the_job(job: Description) -> None:
    text, _ = emitted("torchtitan", job, ["as drawn"])
    launch = read_launch("torchtitan", text).on(job.parallel.world_size)
    assert launch.not_understood == ()
    back = complete(launch.content, "back", num_gpus=job.parallel.world_size)
    theirs, ours = settled(back), settled(job)
    assert {key: (ours[key], theirs[key]) for key in ours if theirs[key] != ours[key]} == {}
    assert "not expressible" not in text


TOML = """
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
[training]
local_batch_size = 8
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "full"
[compile]
enable = true
[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
"""


def test_a_toml_file_is_a_job(tmp_path: Path) -> None:
    file = tmp_path / "llama3_70b.toml"
    file.write_text(TOML)
    launch = read_launch("torchtitan", str(file)).on(256)
    job = complete(launch.content, "file", num_gpus=256)
    assert job.model.layers == 80
    assert (job.training.precision, job.training.param_gather_dtype) == ("fp8", "fp8")
    assert (job.training.recompute, job.training.tp_overlap) == ("full", True)
    assert job.training.global_batch == 8 * 256 // 8  # local batches of 32 replicas
    assert job.software.name == "torchtitan-fsdp2"
    assert launch.not_understood == ()
    assert any("training.steps" in one.why for one in launch.assumed)


def test_flags_go_over_what_a_configuration_begins_with() -> None:
    """llama3_70b begins with TP 8, local batches of 8 and all layers checkpointed."""
    flags = "--module llama3 --config llama3_70b --training.local_batch_size 2 activation-checkpoint:none"
    job = complete(read_launch("torchtitan", flags).on(64).content, "flags", num_gpus=64)
    assert (job.parallel.tp, job.training.micro_batch, job.training.recompute) == (8, 2, "none")
    assert job.training.seq == 8192


def test_layers_are_dealt_as_torchtitan_deals_them() -> None:
    """32 layers and two ends on 8 stages: 34 = 8 x 4 + 2, so 5 5 4 4 4 4 4 4 less an end each."""
    flags = "--module llama3 --config llama3_8b --parallelism.pipeline_parallel_degree 8"
    parallel = read_launch("torchtitan", flags).on(64).content["parallel"]
    assert parallel["stage_layers"] == (4, 5, 4, 4, 4, 4, 4, 3)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--module llama3 --config lama3_8b", "did you mean 'llama3_8b'"),
        ("--module llama3 --config llama3_8b --training.seq_len 8k", "must be a whole number"),
        ("--module llama3 --config llama3_8b --compile.enable maybe", "must be true or false"),
        ("--module llama3", "model.name"),
    ],
)
def test_wrong_flags_are_refused(flags: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_launch("torchtitan", flags).on(8)


def test_a_model_of_ones_own_is_refused() -> None:
    model = {"layers": 3, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 512}
    job = complete({"model": model, "software": "torchtitan-fsdp2"}, "a job", num_gpus=8)
    with pytest.raises(InputError, match="no configuration of model"):
        emitted("torchtitan", job, [])
