"""Megatron-LM's flags: written, read back, and read from scripts as people write them."""

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

PRESETS = ("megatron-core", "megatron-core-moe", "megatron-moe-zoo", "nemo-dgxc", "nemo-24.07", "nemo-mlperf")
DENSE = {"layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000}
LLAMA = {
    **DENSE, "family": "llama", "kv_heads": 4, "gated": True, "activation": "silu", "norm": "rmsnorm",
    "bias": False, "positions": "rotary", "tied_embeddings": False,
}  # fmt: skip
EXPERTS = {**LLAMA, "moe": {"num_experts": 16, "top_k": 2, "ffn": 512, "first_layer": 2, "shared_ffn": 512}}
MLA = {
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_nope_head_size": 64,
    "qk_rope_head_size": 32,
    "v_head_size": 64,
}
LATENT = {**EXPERTS, "kv_heads": 0, "mla": MLA, "mtp_layers": 1}
WINDOW = {
    **LLAMA,
    "sliding_window": 128,
    "global_every": 4,
    "head_size": 128,
    "qk_norm": "head",
    "qkv_bias": True,
}


def read_back(text: str, job: Description) -> Description:
    """What a file says, completed with the build that wrote it."""
    launch = read_launch("megatron", text).on(job.parallel.world_size)
    assert launch.not_understood == ()
    software = {**launch.content["software"], "preset": job.software.name}
    return complete({**launch.content, "software": software}, "back", num_gpus=job.parallel.world_size)


@st.composite
def jobs(draw: st.DrawFn) -> Description:
    """Jobs of Megatron's builds that it has flags for."""
    model: dict[str, Any] = draw(st.sampled_from([DENSE, LLAMA, EXPERTS, LATENT, WINDOW]))
    tp, cp, pp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 2), (1, 2, 4)))
    dp = draw(st.sampled_from([2, 4]))
    micro, chunks = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    parallel: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "virtual_stages": chunks}
    graphs = draw(st.sampled_from([False, "modules", True]))
    parallel["cp_style"] = draw(st.sampled_from(["ring", "all_gather"]))
    if pp == 2 and chunks == 1 and draw(st.booleans()):
        parallel["stage_layers"] = [11, 13]
    training: dict[str, Any] = {
        "seq": 1024, "micro_batch": micro, "global_batch": micro * dp * pp * 4,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "sharding": draw(st.sampled_from(["zero1", "ddp"])),
    }  # fmt: skip
    if training["recompute"] == "full" and draw(st.booleans()):
        training["recompute_layers"] = 2
    if training["recompute"] == "selective" and draw(st.booleans()):
        training["recompute_modules"] = ["layernorm", "mlp"]
    if training["recompute"] == "none" and pp == 1 and draw(st.booleans()):
        training |= {"offload": ["layer"], "offload_layers": draw(st.sampled_from([3, 24]))}
    elif draw(st.booleans()):
        training["offload"] = ["core_attn", "attn_proj"]
    training["optimizer_offload"] = draw(st.sampled_from([0.0, 0.5, 1.0]))
    training["overlap_grad_reduce"] = draw(st.booleans())
    training["overlap_param_gather"] = (
        training["overlap_grad_reduce"] and training["sharding"] == "zero1" and draw(st.booleans())
    )
    if "moe" in model:
        parallel["ep"] = draw(st.sampled_from([n for n in (1, 2, 4, 8) if dp * cp % n == 0]))
    # What these builds keep gradients in is what they reduce them in: one flag says both.
    training["grad_dtype"] = training["grad_reduce_dtype"] = draw(st.sampled_from(["fp32", "bf16"]))
    said = {
        "model": model,
        "parallel": parallel,
        "training": training,
        "software": {"preset": draw(st.sampled_from(PRESETS)), "cuda_graphs": graphs},
    }
    return complete(said, "drawn", num_gpus=tp * cp * pp * dp)


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_flags_read_back_are_the_job(job: Description) -> None:
    text, _ = emitted("megatron", job, ["as drawn"])
    theirs, ours = settled(read_back(text, job)), settled(job)
    assert {key: (ours[key], theirs[key]) for key in ours if theirs[key] != ours[key]} == {}
    assert "not expressible" not in text


def test_what_has_no_flag_is_named() -> None:
    said = {
        "model": {**LLAMA, "post_norms": True},
        "training": {"prefetch": 3},
        "software": {"host_us_per_kernel": 5.0},
    }
    text, _ = emitted("megatron", complete(said, "a job", num_gpus=8), [])
    told = [line for line in text.splitlines() if line.startswith("# not expressible")]
    assert told == [
        "# not expressible: model.post_norms=True",
        "# not expressible: training.prefetch=3",
        "# not expressible: software.host_us_per_kernel=5.0",
    ]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"parallel": {"pp": 2, "schedule": "gpipe"}}, "schedule=gpipe"),
        ({"training": {"recompute": "ops"}}, "recompute=ops"),
        (
            {"training": {"offload": ["layer"], "recompute": "selective"}},
            "neither pipeline nor recomputation",
        ),
        ({"training": {"offload": ["attn_proj"]}}, "goes with core_attn"),
        ({"model": EXPERTS, "parallel": {"tp": 2, "sequence_parallel": False}}, "experts beside tensor"),
    ],
)
def test_what_megatron_refuses_is_not_written(said: dict[str, Any], reason: str) -> None:
    job = complete({"model": LLAMA, **said}, "a job", num_gpus=8)
    with pytest.raises(InputError, match=reason):
        emitted("megatron", job, [])


SCRIPT = """#!/bin/bash
# arguments: where to save
SAVE=$1
TP=4; PP=${PP:-2}
export LAYERS=$((TP * (PP + 4)))
PRECISION="bf16"
NODES=4
MODEL=(
    --num-layers $LAYERS      # 4 x (2 + 4) = 24
    --hidden-size 1024 --num-attention-heads 16
    "--seq-length 2048"
    --vocab-size 32000
)
if [[ "$PRECISION" == "bf16" ]]; then
    MODEL+=(--bf16)
else
    MODEL+=(--fp16)
fi
if [ -n "$WANDB" ]; then
    MODEL+=(--wandb-project x)
fi
mkdir -p "$(dirname "$SAVE")"
torchrun --nproc_per_node 8 --nnodes=$NODES pretrain_gpt.py \\
    ${MODEL[@]} \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size $PP \\
    --micro-batch-size=2 --global-batch-size 64 --save "$SAVE"
"""


def test_a_script_is_read_and_not_run(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT)
    told = read_launch("megatron", str(file))
    assert told.num_gpus == 32  # 4 nodes of 8
    launch = told.on(32)
    assert launch.content["model"]["layers"] == 24
    assert launch.content["model"]["ffn"] == 4096  # 4 x hidden
    assert launch.content["training"]["precision"] == "bf16"
    assert launch.content["training"]["micro_batch"] == 2
    assert launch.content["parallel"]["tp"] == 4
    assert launch.not_understood == ()
    notes = [one.why for one in launch.assumed]
    assert any("no influence on a step's time: --save" in note for note in notes)
    assert any("taken as empty: $1 $WANDB" in note for note in notes)


def test_slurm_says_how_many_gpus_there_are() -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\n"
    assert read_launch("megatron", f"{head}srun python pretrain_gpt.py {FLAGS}\n").num_gpus == 32


FLAGS = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --vocab-size 32000"
FLAGS += " --micro-batch-size 1 --bf16"


def test_defaults_are_megatrons() -> None:
    launch = read_launch("megatron", f"{FLAGS} --tensor-model-parallel-size 2").on(8)
    job = complete(launch.content, "flags", num_gpus=8)
    assert (job.model.norm, job.model.activation, job.model.gated) == ("layernorm", "gelu", False)
    assert job.model.dropout == 0.1
    assert job.training.sharding == "ddp"
    assert not job.parallel.sequence_parallel
    assert job.training.global_batch == 4  # a micro batch on each of 8 / 2 replicas
    swiglu = read_launch("megatron", f"{FLAGS} --swiglu").on(8).content["model"]
    assert swiglu["ffn"] == 2688  # 4 x 1024 x 2/3 = 2730.7, down to a multiple of 64


@pytest.mark.parametrize(
    ("flags", "graphs"),
    [
        ("", False),
        ("--cuda-graph-impl none", False),
        ("--enable-cuda-graph", True),
        ("--cuda-graph-impl local --cuda-graph-warmup-steps 3", True),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", True),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn", "modules"),
        ("--external-cuda-graph --cuda-graph-scope attn mlp", True),  # that is all of a dense layer
        ("--num-experts 8 --cuda-graph-impl transformer_engine --cuda-graph-modules attn mlp", "modules"),
    ],
)
def test_which_kernels_are_captured(flags: str, graphs: bool | str) -> None:
    launch = read_launch("megatron", f"{FLAGS} {flags}").on(8)
    assert launch.not_understood == ()
    assert launch.content["software"]["cuda_graphs"] == graphs


def test_unknown_flags_are_told_with_the_nearest() -> None:
    launch = read_launch("megatron", f"{FLAGS} --sequence-paralel --delay-wgrad-compute").on(8)
    assert [line.partition(": ")[2] for line in launch.not_understood] == [
        "not understood: --sequence-paralel; did you mean '--sequence-parallel'?",
        "not understood: --delay-wgrad-compute",
    ]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (FLAGS.replace("--hidden-size 1024", ""), "--hidden-size is missing"),
        (FLAGS.replace("1024", "1k"), "must be a whole number"),
        (f"{FLAGS} --normalization RMSnorm", "did you mean 'RMSNorm'"),
        (f"{FLAGS} --fp16", "contradicts --bf16"),
        (
            f"{FLAGS} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5",
            "no multiple",
        ),
        (f"{FLAGS} --pipeline-model-parallel-layout Et*3|tL|", "letters E, t, m and L"),
        (f"{FLAGS} --fine-grained-activation-offloading --offload-modules core_atn", "mean 'core_attn'"),
        (f"{FLAGS} --fine-grained-activation-offloading", "--offload-modules says of what"),
        (f"{FLAGS} --optimizer-cpu-offload --optimizer-offload-fraction 1.5", "a share from 0 to 1"),
        (f"{FLAGS} 'unclosed", "no closing quotation"),
        (f"{FLAGS} --linear-attention-freq 4", "only gated_delta_net is described"),
        (f"{FLAGS} --encoder-num-layers 4", "parts that cannot be described"),
        (f"{FLAGS} --num-experts", "has no value"),
        ("no/such/file.sh", "neither a file nor flags"),
    ],
)  # fmt: skip
def test_wrong_flags_are_refused(flags: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_launch("megatron", flags).on(8)


def test_a_layout_is_layers_of_virtual_stages() -> None:
    """E and three, four times four, two and the loss: 3 + 16 + 5 = 24 on 6 = 3 x 2 virtual stages."""
    flags = f"{FLAGS} --pipeline-model-parallel-size 3 --pipeline-model-parallel-layout 'Et*3|(tttt|)*4t*5L'"
    parallel = read_launch("megatron", flags).on(3).content["parallel"]
    assert parallel["stage_layers"] == (3, 4, 4, 4, 4, 5)
    assert parallel["virtual_stages"] == 2
