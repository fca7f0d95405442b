"""Recipe "megatron-gpt": one rank of a GPT training step with Megatron-core's own code (0.16.1).

Model (local layer spec), DistributedDataParallel, optimizer and pipeline schedule are Megatron's; options
follow its training script's defaults.  The driver runs this as a script.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import megatron.core
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from megatron.core.utils import get_attr_wrapped_model

from simcore.graph.graph import MemoryProfile
from workloads.tracing import simcore_step
from workloads.tracing.fake.storages import new_bytes
from workloads.tracing.recipes.megatron import hooks
from workloads.tracing.recipes.megatron.context import ContextParallelAttention
from workloads.tracing.recipes.megatron.job import MegatronGptJob
from workloads.tracing.record import step_marks
from workloads.tracing.record.rank_facts import RankFacts
from workloads.tracing.record.step_marks import StepMarks


class GptRank:
    """One rank of the job, built and ready to run steps.  Use inside the fake mode and the recorder."""

    def __init__(self, job: MegatronGptJob, marks: StepMarks, *, hollow: bool = False) -> None:
        self.job = job
        self.hollow = hollow
        self.marks = marks
        self.dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
        model_parallel_cuda_manual_seed(1234)
        self.config = self._transformer_config()
        chunks = [self._build_chunk(index) for index in range(job.virtual_pipeline)]
        self.layer_offset = tuple(int(chunk.decoder.layers[0].layer_number) - 1 for chunk in chunks)
        hooks.parameter_modules = {
            id(parameter): name.rpartition(".")[0]
            for chunk in chunks
            for name, parameter in chunk.named_parameters()
        }
        self.model = self._wrap(chunks)
        self.optimizer = get_megatron_optimizer(self._optimizer_config(), self.model)
        self._connect()
        marks.describe = self.facts

    def step(self, num_microbatches: int) -> list[Any]:
        """Forward, backward and optimizer.  Returns the losses, which live as long as the step."""
        self._begin()
        losses: list[Any] = get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=[None] * len(self.model),
            model=self.model,
            num_microbatches=num_microbatches,
            seq_length=self.job.seq,
            micro_batch_size=self.job.micro_batch_size,
            forward_only=False,
        )
        self._update()
        return losses

    def alone(self, *, learning: bool) -> list[torch.Tensor]:
        """A step outside of the schedule: one pass of each chunk, and the optimizer.  It makes what a job
        makes once, buffers and states; ``learning``: a backward pass of each chunk, too, in which overlapped
        reductions count the gradients that they will wait for.  Returns outputs, which live as long.
        """
        self._begin()
        outputs: list[torch.Tensor] = []
        with torch.set_grad_enabled(learning):
            for index, chunk in enumerate(self.model):
                self.marks.action_begins("fwd", "fwd", 0, index)
                outputs.append(self._pass_alone(index, chunk))
        if learning:
            for index, output in reversed(list(enumerate(outputs))):
                self.marks.action_begins("bwd", "bwd", 0, index)
                torch.autograd.backward([output], [torch.empty_like(output)])
            self.marks.action_ends()
            self.config.finalize_model_grads_func(self.model)
        self._update()
        return outputs

    def _pass_alone(self, index: int, chunk: Any) -> torch.Tensor:
        """Forward through a chunk, whatever the stage before it would have sent; the loss of the last."""
        job = self.job
        where = {"vp_stage": index} if job.virtual_pipeline > 1 else {}
        if not parallel_state.is_pipeline_first_stage(ignore_virtual=False, **where):
            length = job.seq // (job.cp * (job.tp if job.sequence_parallel else 1))
            received = torch.empty(
                length, job.micro_batch_size, job.hidden, dtype=self.dtype, device="cuda", requires_grad=True
            )
            get_attr_wrapped_model(chunk, "set_input_tensor")(received)
        output, loss = self._forward_step(None, chunk)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, **where)
        return loss(output)[0] if last else output

    def _begin(self) -> None:
        for chunk in self.model:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def _update(self) -> None:
        self.marks.part_begins("optimizer")
        with self.marks.recorder.labels.phase("optimizer"):
            self.optimizer.step()

    def facts(self) -> RankFacts:
        """Bytes of parameters, gradient buffers and optimizer states, each storage counted once; layers."""
        parameters = [parameter for chunk in self.model for parameter in chunk.parameters()]
        gradients = [
            buffer.grad_data
            for chunk in self.model
            for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)
        ]
        seen: set[int] = set()
        held = (parameters, gradients, _optimizer_tensors(self.optimizer))
        sizes = [new_bytes(tensors, seen) for tensors in held]
        return RankFacts(
            MemoryProfile(*map(sum, sizes)),
            layer_offset=self.layer_offset,
            versions=(("megatron-core", megatron.core.__version__),),
            sizes=dict(zip(("parameters", "gradients", "optimizer states"), sizes, strict=True)),
        )

    def _transformer_config(self) -> TransformerConfig:
        job = self.job
        interleaved = job.virtual_pipeline > 1
        recompute: dict[str, Any] = {}
        if job.recompute == "full":
            recompute = {
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 1,
            }
        elif job.recompute == "selective":
            recompute = {"recompute_granularity": "selective"}
        return TransformerConfig(
            num_layers=job.layers,
            hidden_size=job.hidden,
            num_attention_heads=job.heads,
            tensor_model_parallel_size=job.tp,
            pipeline_model_parallel_size=job.pp,
            virtual_pipeline_model_parallel_size=job.virtual_pipeline if interleaved else None,
            num_layers_in_first_pipeline_stage=job.first_stage_layers or None,
            num_layers_in_last_pipeline_stage=job.last_stage_layers or None,
            sequence_parallel=job.sequence_parallel,
            bf16=job.precision == "bf16",
            params_dtype=self.dtype,
            pipeline_dtype=self.dtype,
            # These need compiled extensions; the graph pass "megatron" puts their kernels back.
            gradient_accumulation_fusion=False,
            masked_softmax_fusion=False,
            bias_dropout_fusion=True,
            bias_activation_fusion=not job.num_experts,  # experts fuse gated activations only
            attention_softmax_in_fp32=False,
            # Sets the attributes by which the gradient norm tells sharded from replicated parameters.
            perform_initialization=True,
            batch_p2p_comm=not interleaved,
            overlap_p2p_comm=interleaved,
            deallocate_pipeline_outputs=True,
            context_parallel_size=job.cp,
            **self._experts(),
            **recompute,
        )

    def _experts(self) -> dict[str, Any]:
        job = self.job
        if not job.num_experts:
            return {}
        return {
            "num_moe_experts": job.num_experts,
            "moe_router_topk": job.moe_top_k,
            "moe_ffn_hidden_size": 4 * job.hidden,
            "moe_token_dispatcher_type": "alltoall",
            "expert_model_parallel_size": job.ep,
        }

    def _layer_spec(self) -> Any:
        spec = get_gpt_layer_local_spec(
            num_experts=self.job.num_experts or None, moe_grouped_gemm=False, normalization="LayerNorm"
        )
        if self.hollow:
            spec.submodules = TransformerLayerSubmodules(input_layernorm=spec.submodules.input_layernorm)
        elif self.job.cp > 1:
            spec.submodules.self_attention.submodules.core_attention = ContextParallelAttention
        return spec

    def _build_chunk(self, index: int) -> Any:
        where = {"vp_stage": index} if self.job.virtual_pipeline > 1 else {}
        chunk = GPTModel(
            self.config,
            self._layer_spec(),
            self.job.vocab,
            self.job.seq,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, **where),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, **where),
            share_embeddings_and_output_weights=True,
            position_embedding_type="learned_absolute",
            **where,
        )
        chunk.cuda(torch.cuda.current_device())
        self.marks.recorder.labels.name_modules(chunk)
        return chunk

    def _wrap(self, chunks: list[Any]) -> list[Any]:
        job = self.job
        config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=job.overlap_grad_reduce,
            overlap_param_gather=job.overlap_param_gather,
            use_distributed_optimizer=job.distributed_optimizer,
        )
        wrapped = []
        for index, chunk in enumerate(chunks):
            inner = Float16Module(self.config, chunk) if job.precision == "bf16" else chunk
            wrapped.append(DistributedDataParallel(self.config, config, inner, disable_bucketing=index > 0))
        return wrapped

    def _optimizer_config(self) -> OptimizerConfig:
        job = self.job
        return OptimizerConfig(
            optimizer="adam",
            lr=1e-4,
            clip_grad=1.0,
            bf16=job.precision == "bf16",
            params_dtype=self.dtype,
            use_distributed_optimizer=job.distributed_optimizer,
            overlap_param_gather=job.overlap_param_gather,
        )

    def _connect(self) -> None:
        """The callbacks that Megatron's training script gives the schedule."""
        config = self.config

        def finalize(*args: Any, **kwargs: Any) -> None:
            self.marks.part_begins("grad_sync")
            with self.marks.recorder.labels.phase("grad_sync"):
                finalize_model_grads(*args, **kwargs)

        config.finalize_model_grads_func = finalize
        config.grad_scale_func = self.optimizer.scale_loss
        if self.job.overlap_grad_reduce:
            no_sync: list[Any] = [chunk.no_sync for chunk in self.model]
            start: list[Any] = [chunk.start_grad_sync for chunk in self.model]
            config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
            config.grad_sync_func = start if len(start) > 1 else start[0]

    def _forward_step(self, _data: Any, model: Any) -> tuple[torch.Tensor, Any]:
        """What a training script passes to the schedule; the batch is on the device already."""
        job = self.job
        length = job.seq // job.cp
        tokens = torch.empty(job.micro_batch_size, length, dtype=torch.long, device="cuda")
        mask = torch.empty(1, 1, length, length, dtype=torch.bool, device="cuda")
        output = model(tokens, torch.empty_like(tokens), mask, labels=torch.empty_like(tokens))
        return output, _mean_loss


def _mean_loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"lm loss": loss.detach()}


def _optimizer_tensors(optimizer: Any) -> Iterable[torch.Tensor]:
    """State tensors and master parameters of Megatron's (possibly chained) optimizer."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = part.optimizer
        if inner is None:
            continue
        for group in inner.param_groups:
            yield from group["params"]
        for state in inner.state.values():
            yield from (
                value for value in state.values() if isinstance(value, torch.Tensor) and value.is_cuda
            )


def main() -> None:
    """``gpt.py JOB MICROBATCHES [learning] [hollow]``: the job in JSON; a warm-up, then a step of
    ``MICROBATCHES`` (0: of one pass of each chunk outside of the schedule).  "hollow": each layer is a norm
    alone, in which nothing of the schedule changes.
    """
    job = MegatronGptJob(**json.loads(sys.argv[1]))
    options = sys.argv[3:]
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=job.tp,
        pipeline_model_parallel_size=job.pp,
        virtual_pipeline_model_parallel_size=job.virtual_pipeline if job.virtual_pipeline > 1 else None,
        context_parallel_size=job.cp,
        expert_model_parallel_size=job.ep,
    )
    marks = step_marks.current()
    marks.recorder.known.routed = job.num_experts > 0  # the order of experts is a tensor that it begins with
    rank = GptRank(job, marks, hollow="hollow" in options)
    with simcore_step():
        rank.alone(learning="learning" in options)
    microbatches = int(sys.argv[2])
    with simcore_step():
        losses = rank.step(microbatches) if microbatches else rank.alone(learning=True)
    del losses


if __name__ == "__main__":
    main()
