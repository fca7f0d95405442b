"""Recipes: jobs by the names of Megatron-Bridge's functions, and rows that follow them."""

from __future__ import annotations

import pytest

from simcore.apps.run.scenario import resolve_scenario
from simcore.errors import InputError
from simcore.hardware import load_cluster
from workloads.jobs import complete
from workloads.jobs.presets import PublishedRecipe, recipes
from workloads.jobs.published.case import describe
from workloads.jobs.published.row import RunRow

NAMES = tuple(recipes())

COLUMNS = {
    "id": "some_70b", "source_repo_or_paper": "NVIDIA-NeMo/Megatron-Bridge", "model": "LLAMA3_70B",
    "layers": "80", "hidden": "8192", "heads": "64", "kv_heads": "8", "ffn": "28672", "seq": "8192",
    "vocab": "128256", "gpus": "64", "gpu_type": "GB200", "tp": "2", "pp": "4", "vpp": "5", "cp": "1",
    "micro_batch": "1", "global_batch": "256", "precision": "NVFP4", "quality": "B",
}  # fmt: skip


def row(**changes: str) -> RunRow:
    return RunRow(2, {**COLUMNS, **changes})


@pytest.mark.parametrize("name", NAMES[::7])
def test_recipes_are_complete_jobs_on_their_clusters(name: str) -> None:
    one: PublishedRecipe = recipes()[name]
    said = one.scenario()
    cluster = load_cluster(said["cluster"], tuple(said["set"].items()))
    assert cluster.num_placed == one.gpus
    job = complete(one.content(), name, num_gpus=one.gpus, generation=cluster.gpu.generation)
    assert job.parallel.world_size == one.gpus
    assert f"_{one.gpus}gpu_{one.gpu}_" in name
    assert job.training.precision == one.settings["training"]["precision"]


def test_a_recipe_is_a_question() -> None:
    scenario = resolve_scenario("deepseek_v3_pretrain_256gpu_gb200_fp8mx", settings={})
    # 64 GPUs of each of four racks: experts stay within one.
    assert scenario.cluster == "gb200-288"
    assert scenario.settings.hardware["cluster.placement"] == "domains:64"
    assert scenario.described is not None
    assert scenario.described.content["software"]["moe_exchange_kernels"] == "hybridep"
    elsewhere = resolve_scenario("deepseek_v3_pretrain_256gpu_gb200_fp8mx", cluster="b200-256", settings={})
    assert (elsewhere.cluster, dict(elsewhere.settings.hardware)) == ("b200-256", {})
    with pytest.raises(InputError, match="did you mean 'deepseek_v3_pretrain_256gpu_gb200_fp8mx'"):
        resolve_scenario("deepseek_v3_pretrain_256gpu_gb200_fp8m", settings={})


def test_rows_take_what_they_leave_open_from_the_recipe() -> None:
    band = describe(row())
    assert band.preset == "llama3_70b_pretrain_64gpu_gb200_nvfp4"
    (case,) = band.cases
    assert case.software.cuda_graphs
    assert not case.training.tp_overlap
    # What a row says goes before.
    (other,) = describe(row(recompute="full")).cases
    assert other.training.recompute == "full"
    # Of another layout the recipe's flags say nothing: the preset holds, and what is open stays open.
    assert describe(row(tp="4", vpp="")).preset == "megatron-bridge"


def test_a_recipe_is_of_the_model_by_name_and_of_the_sharding() -> None:
    empty = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    nano = row(**empty, model="Nemotron_3_Nano", gpus="8", tp="1", pp="1", vpp="", ep="8", micro_batch="2",
               global_batch="512", precision="MXFP8")  # fmt: skip
    # 3.5 Lightning has the same sizes, and a recipe that is sharded whole.
    assert describe(nano).preset == "nemotron_3_nano_pretrain_8gpu_gb200_fp8mx"
    lightning = RunRow(2, {**nano.columns, "model": "Nemotron 3.5 Lightning"})
    assert describe(lightning).preset == "nemotron_3_5_lightning_pretrain_8gpu_gb200_fp8mx"
    sharded = RunRow(2, {**lightning.columns, "zero_fsdp": "Megatron-FSDP"})
    assert describe(sharded).preset == "nemotron_3_5_lightning_pretrain_8gpu_gb200_fp8mx_fsdp"


def test_what_a_recipe_freezes_is_not_updated() -> None:
    empty = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    pictures = row(**empty, model="Qwen3_VL_30B_a3B", gpus="8", tp="1", pp="1", vpp="", ep="8",
                   micro_batch="4", global_batch="512", seq="4096", precision="BF16")  # fmt: skip
    band = describe(pictures)
    assert band.preset == "qwen3_vl_30b_a3b_pretrain_8gpu_gb200_bf16"
    # Gradients go through the language model to what projects pictures; its weights have none.
    assert band.cases[0].training.trainable == "word_embeddings"
    text = {**pictures.columns, "model": "Qwen3_30B_a3B"}
    assert describe(RunRow(2, text)).cases[0].training.trainable == "all"
    # Layouts that only the model with pictures has say nothing of the one without.
    layout = {"gpu_type": "H100", "gpus": "16", "pp": "2", "vpp": "12", "micro_batch": "1"}
    assert describe(RunRow(2, {**pictures.columns, **layout})).preset.startswith("qwen3_vl_30b")
    assert describe(RunRow(2, {**text, **layout})).preset == "megatron-bridge"


def test_parameters_may_be_sharded_within_a_domain() -> None:
    one = recipes()["nemotron_3_ultra_pretrain_256gpu_gb300_fp8mx"]
    job = complete(one.content(), one.name, num_gpus=256, generation="blackwell", domain_gpus=72)
    assert (job.training.sharding, job.parallel.dp, job.parallel.dp_shard) == ("zero3", 256, 64)


def test_what_a_layout_makes_room_for_goes_with_it() -> None:
    fsdp = {"tp": "1", "pp": "1", "vpp": "", "precision": "BF16"}
    (sharded,) = describe(row(**fsdp, zero_fsdp="FSDP")).cases
    assert (sharded.training.sharding, sharded.training.offload_layers) == ("zero3", 20)
    (plain,) = describe(row(**fsdp, zero_fsdp="distributed optimizer")).cases
    assert (plain.training.sharding, plain.training.offload) == ("zero1", ())
