"""From what a user writes to a job: names, files, presets, defaults, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.graph import verify
from workloads.jobs import Description, complete, named_model

#: huggingface.co/meta-llama/Meta-Llama-3-8B config.json, what is read of it.
LLAMA_3_8B = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "tie_word_embeddings": False, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip


def job(content: dict, *, num_gpus: int = 8, folder: Path | None = None, **overrides: str) -> Description:
    settings = {key.replace("__", "."): value for key, value in overrides.items()}
    return complete(content, "job.yaml", overrides=settings, num_gpus=num_gpus, folder=folder)


def config(tmp_path: Path, content: object) -> str:
    (tmp_path / "config.json").write_text(json.dumps(content))
    return "config.json"


@pytest.mark.parametrize(
    ("section", "key", "value", "reason"),
    [
        ("training", "seq", 1 << 30, "is more than can be simulated; nearest: 16777216"),
        ("training", "micro_batch", 10**9, "is more than can be simulated; nearest: 4194304"),
        ("training", "global_batch", 10**30, "is more than can be simulated; nearest: 1099511627776"),
        ("parallel", "pp", 10**12, "is more than can be simulated; nearest: 1024"),
        ("parallel", "dp", 999_999_999, "is more than can be simulated; nearest: 16777216"),
        ("model", "layers", 10**9, "is more than can be simulated; nearest: 4096"),
        ("model", "heads", 2**64, "is more than can be simulated; nearest: 16384"),
    ],
)
def test_absurd_sizes_are_refused_at_once(section: str, key: str, value: int, reason: str) -> None:
    model = {"layers": 4, "hidden": 64, "heads": 4, "ffn": 64, "vocab": 64}
    content = {"model": model}
    content[section] = {**content.get(section, {}), key: value}
    with pytest.raises(InputError, match=rf"^x: {section}\.{key} = {value}: {reason}$"):
        complete(content, "x", num_gpus=8)


def test_microbatches_of_an_interleaved_pipeline_that_no_group_fits_are_refused_at_once() -> None:
    content = {
        "model": {"layers": 4, "hidden": 64, "heads": 4, "ffn": 64, "vocab": 64},
        "parallel": {"pp": 2, "virtual_stages": 2},
        "training": {"global_batch": 1_099_511_627_689, "micro_batch": 1},  # a prime
    }
    with pytest.raises(InputError, match="microbatches are more than can be simulated; nearest: 65536"):
        complete(content, "x", num_gpus=2).graph()


def test_a_config_json_is_the_model_of_that_name(tmp_path):
    made = job({"model": config(tmp_path, LLAMA_3_8B)}, folder=tmp_path)
    assert made.model.model_copy(update={"name": "llama3-8b"}) == named_model("llama3-8b")
    assert made.model.name == tmp_path.name


@pytest.mark.parametrize(
    ("content", "checks"),
    [
        (
            {"model_type": "mixtral", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
             "intermediate_size": 128, "vocab_size": 100, "num_local_experts": 8, "num_experts_per_tok": 2},
            {"num_experts": 8, "top_k": 2, "ffn": 128},
        ),
        (
            {"model_type": "deepseek_v3", "hidden_size": 64, "num_attention_heads": 4,
             "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100, "n_routed_experts": 16,
             "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 2,
             "first_k_dense_replace": 1, "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
             "qk_rope_head_dim": 8, "v_head_dim": 16},
            {"num_experts": 16, "shared_ffn": 64, "first_layer": 1},
        ),
    ],
)  # fmt: skip
def test_experts_of_a_config(tmp_path, content, checks):
    made = job({"model": config(tmp_path, content)}, folder=tmp_path)
    assert made.model.moe is not None
    assert {key: getattr(made.model.moe, key) for key in checks} == checks
    assert verify(made.graph()) == []


def test_gpt2_keeps_what_transformers_defaults_to(tmp_path):
    content = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
               "n_positions": 1024, "n_inner": None, "resid_pdrop": 0.1}  # fmt: skip
    made = job({"model": config(tmp_path, content)}, folder=tmp_path).model
    assert (made.ffn, made.dropout, made.tied_embeddings, made.positions) == (3072, 0.1, True, "learned")


def test_what_is_left_open_is_assumed_and_said():
    made = job({"model": "llama3-8b", "parallel": {"tp": 2}}, num_gpus=16)
    # Its own sequences of 8,192 tokens; on few GPUs 131,072 tokens each: 16 x 131,072 / 8,192 samples.
    assert (made.parallel.dp, made.parallel.sequence_parallel, made.training.global_batch) == (8, True, 256)
    assert (made.training.seq, made.training.num_microbatches(made.parallel)) == (8192, 32)
    assert made.software.name == "megatron-core"
    assert any("dp=8" in line for line in made.assumptions)
    torch = job({"model": "llama3-8b", "training": {"sharding": "fsdp2"}})
    assert torch.software.name == "torchtitan-fsdp2"


def test_settings_change_single_keys():
    made = job({"model": "llama3-8b"}, parallel__pp="2", training__recompute="full", model__layers="4",
               software="nemo-dgxc", software__attention="flash3")  # fmt: skip
    assert (made.parallel.pp, made.training.recompute, made.model.layers) == (2, "full", 4)
    assert (made.software.name, made.software.attention) == ("nemo-dgxc", "flash3")


@pytest.mark.parametrize(
    ("content", "overrides", "reason"),
    [
        ({"model": "llama3-8"}, {}, "unknown model 'llama3-8'; did you mean 'llama3-8b'"),
        ({"model": "llama3-8b", "software": "nemo"}, {}, "unknown preset 'nemo'; did you mean 'nemo-"),
        ({"model": "llama3-8b", "parallel": {"tpp": 2}}, {}, "parallel.tpp'; did you mean 'tp'"),
        ({"model": "llama3-8b", "parallel": {"tensor_model_parallel_size": 2}}, {}, "mean 'parallel.tp'"),
        ({"model": {"num_hidden_layers": 2}}, {}, "mean 'model.layers'"),
        ({"model": "llama3-8b"}, {"training__sharding": "zero4"}, "cannot be 'zero4'; did you mean 'zero"),
        ({"model": "llama3-8b"}, {"training__recompute_modules": "[mpl]"}, "'mpl'; did you mean 'mlp'"),
        ({"model": "llama3-8b"}, {"training__recompute_modules": "mlp"}, r"a list; nearest: .mlp.$"),
        ({"model": "llama3-8b"}, {"parallel__tp": "0"}, "parallel.tp = 0: must be more than 0; nearest: 1"),
        ({"model": "llama3-8b"}, {"parallel__tp": "3"}, "does not divide 8 GPUs of the cluster"),
        ({"model": "llama3-8b"}, {"model__moe__num_expert": "3"}, "moe.num_expert"),
        ({"model": {"layers": 2}}, {}, "model.hidden is missing"),
        ({"parallel": 3, "model": "llama3-8b"}, {}, "parallel must map keys to values, not 3"),
        ({"model": "none.json"}, {}, "none.json.: No such file"),
    ],
)
def test_refused(content, overrides, reason):
    with pytest.raises(InputError, match=reason):
        job(content, **overrides)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"hidden_size": 3}, "model_type is missing"),
        ({**LLAMA_3_8B, "model_type": "lama"}, "model_type 'lama' is not known; did you mean 'llama'"),
        ({**LLAMA_3_8B, "hidden_size": "4k"}, "hidden_size must be a whole number, not '4k'"),
        ({**LLAMA_3_8B, "hidden_act": "tanh"}, "unknown activation 'tanh'"),
        ([1], "expected an object, got list"),
    ],
)
def test_a_config_that_cannot_be_read(tmp_path, content, reason):
    with pytest.raises(InputError, match=reason):
        job({"model": config(tmp_path, content)}, folder=tmp_path)


@pytest.mark.parametrize(
    ("said", "how"), [({"recompute_modules": ["mlp"]}, "selective"), ({"recompute_layers": 4}, "full")]
)
def test_who_says_what_runs_again_has_said_how(said, how):
    made = job({"model": "llama3-8b", "training": said})
    assert made.training.recompute == how
    assert any(f"training.recompute={how}" in line for line in made.assumptions)
    refused = job({"model": "llama3-8b", "training": {**said, "recompute": "none"}})
    assert refused.training.recompute == "none"
    assert any("it is unused" in line for line in refused.warnings)


def test_one_key_of_named_experts_changes_and_the_others_stay():
    moe = job({"model": "mixtral-8x7b"}, model__moe__load="2").model.moe
    assert (moe.load, moe.num_experts, moe.top_k, moe.ffn) == (2.0, 8, 2, 14336)
    mla = job({"model": {"model": "deepseek-v2-lite", "mla": {"kv_lora_rank": 256}}}).model.mla
    assert (mla.kv_lora_rank, mla.v_head_size) == (256, 128)


def test_sequence_parallelism_goes_with_tp_where_it_can():
    # An image of 224 in patches of 16: 196 and a class token, 197, a prime.
    made = job({"model": "vit-large", "parallel": {"tp": 2}})
    assert not made.parallel.sequence_parallel
    assert any(
        "no sequence parallelism: tp 2 does not divide 197 tokens" in note for note in made.assumptions
    )
    assert verify(made.graph()) == []


@pytest.mark.parametrize(
    ("training", "each"),
    [
        ({}, 12),  # the preset's: Adam in fp32 and a copy of the weights
        ({"optimizer": "sgd"}, 4),  # the copy alone
        ({"optimizer": "none"}, 0),
        ({"precision": "fp32"}, 8),  # weights are fp32 themselves
        ({"precision": "fp32", "optimizer": "sgd"}, 0),
        ({"sharding": "fsdp2", "precision": "fp32"}, 12),  # the sharded weights count as the copy
        ({"optimizer": "sgd", "optimizer_bytes_per_parameter": 8}, 8),
    ],
)
def test_optimizer_states_follow_precision_and_optimizer(training, each):
    made = job({"model": "llama3-8b", "training": training}, model__layers="2")
    assert made.training.optimizer_bytes_per_parameter == each
    assert verify(made.graph()) == []


def test_states_are_memory_and_traffic():
    """Per parameter: SGD without states reads gradient and weight, Adam three states more each way."""

    def optimizer_bytes(**training):
        graph = job({"model": "gpt2-small", "training": training}, num_gpus=1).graph()
        ops = graph.ops
        chosen = [k for k, name in enumerate(ops.name) if name in ("fused_adam", "fused_sgd")]
        return sum(int(ops.bytes_read[k] + ops.bytes_written[k]) for k in chosen)

    plain = optimizer_bytes(precision="fp32", optimizer="sgd")  # 4 + 4 read, 4 written
    adam = optimizer_bytes(precision="fp32")  # 4 + 8 + 4 read, 8 + 4 written
    assert adam / plain == pytest.approx(28 / 12)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"training__precision": "BF16"}, "did you mean 'bf16'"),
        ({"training__micro_batch": "0"}, "must be more than 0; nearest: 1"),
        ({"training__prefetch": "-1"}, "must be at least 0; nearest: 0"),
        ({"training__seq": "8k"}, "must be a whole number; nearest: 8192"),
        ({"training__micro_batch": "1.5"}, "must be a whole number; nearest: 2"),
        ({"training__overlap_p2p": "maybe"}, "must be true or false"),
        ({"model__moe": "8"}, "moe maps keys to values, not 8; keys: num_experts, top_k"),
        ({"model__moe__num_expert": "8"}, "unknown key .*did you mean 'num_experts'"),
        ({"parallel__dp": "64"}, "64 ranks, the cluster has 8 GPUs; nearest: parallel.dp=8"),
    ],
)
def test_a_wrong_value_is_refused_with_the_nearest(settings, reason):
    with pytest.raises(InputError, match=reason):
        job({"model": "llama3-8b"}, **settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model__heads": "30"}, "hidden: 4096 is no multiple of heads 30; .* or heads=16 or 32"),
        ({"model__kv_heads": "5"}, "heads: 32 is no multiple of kv_heads 5; .* or kv_heads=4 or 8"),
        (
            {"model__moe": "{num_experts: 8, top_k: 2, ffn: 64, load: 5}"},
            "4 times the mean, not 5; nearest: 4",
        ),
        (
            {"model__moe": "{num_experts: 8, top_k: 2, ffn: 64, first_layer: 40}"},
            "none has experts; nearest: 31",
        ),
    ],
)
def test_dimensions_that_do_not_fit_are_refused_with_the_nearest(settings, reason):
    with pytest.raises(InputError, match=reason):
        job({"model": "llama3-8b"}, **settings).graph()


def test_fsdp2_keeps_what_it_gathered_with_pipelines():
    given = {"model": "llama3-8b", "training": {"sharding": "fsdp2"}}
    assert job(given).training.reshard_after_forward
    assert not job(given, parallel__pp="2").training.reshard_after_forward
    assert job(given, parallel__pp="2", training__reshard_after_forward="true").training.reshard_after_forward


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"software": "mosaic-fsdp", "training": {"recompute": "selective"}},
            "training.recompute=selective and software preset mosaic-fsdp .* has none, full",
        ),
        (
            {"software": "deepspeed-zero3", "parallel": {"pp": 2}},
            "parallel.schedule=1f1b and software preset deepspeed-zero3 .* has none",
        ),
        (
            {"software": "fms-fsdp", "parallel": {"pp": 2, "virtual_stages": 2}},
            "parallel.schedule=interleaved and software preset fms-fsdp",
        ),
        (
            {"parallel": {"tp": 2, "sequence_parallel": False}, "training": {"tp_overlap": True}},
            "training.tp_overlap=True without parallel.sequence_parallel",
        ),
    ],
)
def test_what_contradicts_itself_is_said_and_simulated(content, words):
    made = job({"model": "llama3-8b", **content})
    assert any(re.search(words, warning) for warning in made.warnings)
    assert not job({"model": "llama3-8b"}).warnings
    (one,) = job({"model": "llama3-8b"}, training__precision="int8").warnings
    assert "nobody trains so" in one
    assert not job({"model": "llama3-8b"}, training__precision="int8", training__trainable="none").warnings
    assert verify(made.graph()) == []


def test_models_with_experts_have_the_build_that_was_measured_with_some():
    moe = {"model": {"model": "llama3-8b", "moe": {"num_experts": 8, "top_k": 2, "ffn": 4096}}}
    for content in ({"model": "mixtral-8x7b"}, moe):
        assert "software.preset=megatron-core-moe-2026: " in "".join(job(content).assumptions)
    dense, said = job({"model": "llama3-8b"}), job({**moe, "software": "megatron-core"})
    assert "megatron-core-moe" not in "".join((*dense.assumptions, *said.assumptions))


def test_a_preset_on_gpus_that_it_never_ran_on_is_said():
    made = complete({"model": "llama3-8b"}, "job.yaml", num_gpus=8, generation="volta")
    (warning,) = made.warnings
    assert "generation=volta and software preset megatron-core" in warning
    assert "ran on ampere, hopper, blackwell" in warning
    unknown = complete({"model": "llama3-8b"}, "job.yaml", num_gpus=8, generation="xanadu")
    assert unknown.warnings == (
        "software preset megatron-core was not tried on GPUs of generation=xanadu: it ran on ampere, hopper,"
        " blackwell; simulated all the same",
    )


def test_exchanges_by_kernels_of_their_own_know_what_nvlink_joins() -> None:
    content = {"model": "mixtral-8x7b", "parallel": {"ep": 8}, "software": "megatron-bridge-flex"}
    for domain, said in ((8, []), (72, ["software.moe_exchange_domain=72: NVLink joins 72 GPUs"])):
        made = complete(content, "job.yaml", num_gpus=64, generation="blackwell", domain_gpus=domain)
        assert made.software.moe_exchange_domain == domain
        assert [line for line in made.assumptions if "exchange_domain" in line] == said


def test_every_assumption_names_its_key_and_why():
    made = job({"model": "llama3-8b", "parallel": {"tp": 2, "pp": 3}}, num_gpus=12)
    assumed = {one.key: one for one in made.assumed}
    # 32 layers on 3 stages: 11, 11 and 10, the last with the head.
    assert assumed["parallel.stage_layers"].value == made.parallel.stage_layers == (11, 11, 10)
    assert (
        str(assumed["parallel.dp"])
        == "parallel.dp=2: data parallelism over what tp, cp and pp leave of 12 GPUs"
    )
    assert "parallel.tp" not in assumed  # it was said


@pytest.mark.parametrize("name", ["../config.json", "/dev/zero.json", "a/../../config.json", "x\0.json"])
def test_files_that_a_file_names_lie_in_its_folder(tmp_path, name):
    inner = tmp_path / "inner"
    (inner / "a").mkdir(parents=True)
    config(tmp_path, LLAMA_3_8B)
    with pytest.raises(InputError, match=r"job\.yaml: .*"):
        job({"model": name}, folder=inner)
    with pytest.raises(InputError, match=r"job\.yaml: .*"):
        job({"model": "llama3-8b", "software": name.replace("json", "toml")}, folder=inner)
    # What the user names on the command line may lie anywhere.
    assert job({}, folder=inner, model=str(tmp_path / "config.json")).model.layers == 32


@pytest.mark.parametrize("key", [".", ".x", "modle.layers", "model.", "parallel..tp", "x"])
def test_settings_of_no_section_are_refused(key):
    with pytest.raises(InputError):
        complete({"model": "llama3-8b"}, "x", num_gpus=8, overrides={key: "1"})


@pytest.mark.parametrize(
    "table",
    ["[supports]\nrecompute = ", "[supports]\ngeneration = ", "[unpublished]\nmicro_batch = "],
)
@pytest.mark.parametrize("value", ["true", '""', "[]", "[[1]]", "[1.5]", '[["a"]]', "7"])
def test_lists_of_presets_are_lists(tmp_path, table, value):
    text = f'description = "mine"\nextends = "megatron-core"\n\n{table}{{ value = {value}, source = "x" }}\n'
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError, match=r"mine \[\w+\]: \w+: value must be a list of "):
        job({"model": "llama3-8b", "software": "mine.toml"}, folder=tmp_path)


def test_shared_experts_that_tp_does_not_divide_are_refused():
    moe = {"num_experts": 4, "top_k": 2, "ffn": 32, "shared_ffn": 1}
    model = {"layers": 4, "hidden": 64, "heads": 4, "ffn": 64, "vocab": 64, "moe": moe}
    with pytest.raises(InputError, match="tp=2 does not divide 1 columns of the shared experts"):
        job({"model": model, "parallel": {"tp": 2}}).graph()


def test_user_buffers_do_not_leave_a_domain() -> None:
    said = {
        "model": {"layers": 2, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 32000},
        "parallel": {"tp": 16, "sequence_parallel": True},
        "training": {"micro_batch": 1, "global_batch": 4, "tp_overlap": True},
    }  # fmt: skip
    with pytest.raises(InputError, match="within one NVLink domain, and NVLink joins 8 GPUs; nearest: tp=8"):
        complete(said, "a job", num_gpus=16)
    assert complete(said, "a job", num_gpus=16, domain_gpus=72).training.tp_overlap
    # 72 = 4 x 16 + 8: the fifth group has its last 8 ranks in the next rack.  18 divides 72, not 16 heads.
    edge = "of which ranks 64 to 79, a group of tp=16, have 8; nearest: tp=8$"
    with pytest.raises(InputError, match=edge):
        complete(said, "a job", num_gpus=144, domain_gpus=72)
    assert complete(said, "a job", num_gpus=128, domain_gpus=64).training.tp_overlap
    del said["training"]["tp_overlap"]
    assert not complete(
        {**said, "software": {"preset": "nemo-mlperf"}}, "a job", num_gpus=16
    ).training.tp_overlap


def test_products_in_nvfp4_gather_weights_in_bf16() -> None:
    said = {
        "model": {"layers": 2, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 32000},
        "training": {"micro_batch": 1, "global_batch": 8, "precision": "nvfp4"},
        "software": {"preset": "nemo-mlperf"},
    }  # fmt: skip
    assert complete(said, "a job", num_gpus=8).training.param_gather_dtype == "bf16"
