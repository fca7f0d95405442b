"""What stopped a script, said so that its author can act: where, in whose code, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from workloads.tracing.drive.script_job import OtherStepsError, ScriptError, ScriptHangError, ScriptJob
from workloads.tracing.fake.object_exchange import ObjectExchangeError
from workloads.tracing.fake.outside_world import NetworkCallError
from workloads.tracing.fake.process_groups import OtherWorldError
from workloads.tracing.fake.started_processes import ProcessCountError
from workloads.tracing.fake.visible_devices import NoSuchDeviceError
from workloads.tracing.kernels import UnknownKernelError
from workloads.tracing.record.step_marks import StepMarks
from workloads.tracing.sites import script_stack, source_line, where_raised

_LINES_SHOWN = 10
_FRAMES_SHOWN = 4
_NO_FAKE_RULE = re.compile(r"([\w.]+::[\w.]+)")


def explain(
    error: BaseException, rank: int, module: str, output: Sequence[str] = (), answered: str = ""
) -> ScriptError:
    """The message for ``error``, raised by ``rank``'s script while ``module`` ran (``""``: none).

    ``answered``: what the script had asked for and nobody knows.
    """
    _, raised = where_raised(error.__traceback__)
    stack = script_stack(error.__traceback__)
    lines = [f"rank {rank}: {in_a_line(error, module)}"]
    lines += [
        f"  {'called from' if number else 'in the script'}: {frame}"
        for number, frame in enumerate(stack[:_FRAMES_SHOWN])
    ]
    if raised and raised not in stack[:1]:
        lines.append(f"  raised by: {raised}")
    advice = _advice(error)
    if advice:
        lines.append(f"  what to do: {advice}")
    if answered and (not advice or isinstance(error, ScriptHangError)):
        lines.append(f"  answered before, not being known: {answered}")
    return _with_output(lines, output)


def _with_output(lines: list[str], output: Sequence[str]) -> ScriptError:
    said = [line for line in output if line.strip()][-_LINES_SHOWN:]
    if said:
        lines += ["  the script's last output:", *(f"    {line}" for line in said)]
    return ScriptError("\n".join(lines))


def unsupported_operator(error: BaseException) -> str | None:
    """Name of the operator without a rule for shapes that ``error`` is about; None for another error."""
    if isinstance(
        error, UnsupportedOperatorException | DynamicOutputShapeException | DataDependentOutputException
    ):
        func: Any = getattr(error, "func", None)
        return str(func.name()) if hasattr(func, "name") else str(error)
    text = str(error)
    if isinstance(error, NotImplementedError | RuntimeError) and ("fake impl" in text or "Meta" in text):
        found = _NO_FAKE_RULE.search(text)
        return found.group(1) if found else None
    return None


def in_a_line(error: BaseException, module: str) -> str:
    """What ``error``, raised while ``module`` ran, says."""
    operator = unsupported_operator(error)
    if operator is not None:
        return f"operator {operator} has no rule for shapes (module {module or 'none'!r})"
    if isinstance(error, UnknownKernelError):
        return f"{error} (module {module or 'none'!r})"
    text = str(error).strip().splitlines()
    said = text[0] if text else source_line(error.__traceback__) or "no message"
    if said.endswith(":") and len(text) > 1:  # what it is follows
        said = f"{said} {text[1].strip()}"
    cause = error.__cause__
    if cause is not None and str(cause).strip() and str(cause).strip().splitlines()[0] not in said:
        said += f" (because of {in_a_line(cause, module)})"
    return f"{type(error).__name__}: {said}"


def _advice(error: BaseException) -> str:
    operator = unsupported_operator(error)
    if operator is not None:
        name = operator.partition(".")[0] if "::" in operator else operator
        return (
            f"put torch.library.register_fake({name!r}) with a function of its shapes into a file "
            f"and pass it with --setup FILE.py; workloads.tracing.kernels.register_cost({name!r}) says there "
            f"what it costs"
        )
    if isinstance(error, UnknownKernelError):
        return (
            f"put workloads.tracing.kernels.register_launch({error.kernel!r}) with a function of what a "
            f"launch reads and writes into a file and pass it with --setup FILE.py"
        )
    if isinstance(error, NoSuchDeviceError):
        return "pass --gpus-per-node as the node has them, and use LOCAL_RANK as the device's index"
    if isinstance(error, ProcessCountError | OtherWorldError):
        return (
            "pass --world-size and --gpus-per-node as the script says itself; processes that it starts "
            "itself are all on one node"
        )
    if any(isinstance(one, NetworkCallError) for one in _causes(error)):
        return "read from local files, or give stand-ins in a --setup FILE.py"
    if isinstance(error, ObjectExchangeError):
        return "send plain data (sizes, names), or stand in for the exchange in a --setup FILE.py"
    if isinstance(error, ScriptHangError):
        return (
            "remove the wait, or stand in for what it waits for in a --setup FILE.py (--hang-s waits longer)"
        )
    if isinstance(error, AttributeError) and "it stands in for" in str(error):
        return "install it beside torch, or add what is missing in a --setup FILE.py"
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name!r} beside torch, or put a stand-in into sys.modules in a --setup FILE.py"
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that libraries have wrapped in it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def ended_early(
    how: BaseException | None,
    job: ScriptJob,
    rank: int,
    steps: StepMarks,
    output: Sequence[str] = (),
    answered: str = "",
    caught: str = "",
) -> ScriptError:
    """The message for a script that ended (``how``: its SystemExit, None: ran to its end) before its step.

    ``answered``: what it had asked for and nobody knows; ``caught``: what a pass raised last.
    An OtherStepsError where an earlier step will do.
    """
    if how is None:
        where = "ran to its end"
    else:
        in_script, raised = where_raised(how.__traceback__)
        where = f"called exit({getattr(how, 'code', None)!r}) at {in_script or raised or 'an unknown place'}"
    if steps.done:
        return _with_output(
            [
                f"rank {rank}: step {job.step} launched nothing on a GPU: the script computes on the host",
                "  what to do: give the script its option for a GPU; it sees torch.cuda.is_available()",
            ],
            output,
        )
    lines = [
        f"rank {rank}: the script {where} before step {job.step} was complete "
        f"({steps.optimizer_steps} optimizer.step() calls, {steps.step} whole steps seen)",
        f"  what to do: let it run {job.step + 1} steps, or keep an earlier one with --steps; a script that "
        f"does not call a torch.optim optimizer marks its steps with simcore_step()",
    ]
    if caught:
        lines.append(f"  raised before in a forward or backward pass, and caught by the script: {caught}")
    if answered:
        lines.append(f"  answered before, not being known: {answered}")
    if job.exact_step or not steps.step:
        return _with_output(lines, output)
    error = OtherStepsError(str(_with_output(lines, output)))
    error.step = steps.step - 1
    return error
