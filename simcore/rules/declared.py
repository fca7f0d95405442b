"""Rules as they are written: decorated functions in a file of a user's, and communication of his own."""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcore.collectives.kinds import COLLECTIVES, Collective
from simcore.collectives.kinds.own_kernel import Flow, FlowKernel
from simcore.errors import InputError
from simcore.outside import read_text
from simcore.records import dataclass
from simcore.registry import mistake_in

if TYPE_CHECKING:
    from simcore.rules.view import RuleGraph

_MODULE = "simcore_rules_of_"


@dataclass(frozen=True)
class Rule:
    """A function that says what changes of a graph, with what it is about in words."""

    says: str
    function: Callable[[RuleGraph], None]

    @property
    def file(self) -> str:
        """Where it is written."""
        return self.function.__code__.co_filename

    @property
    def digest(self) -> str:
        """Changes with what is written there."""
        try:
            text = inspect.getsource(inspect.getmodule(self.function) or self.function)
        except (OSError, TypeError):
            text = repr((self.function.__code__.co_code, self.function.__code__.co_consts))
        return hashlib.sha256(f"{self.says}\n{text}".encode()).hexdigest()


def rule(says: str) -> Callable[[Callable[[RuleGraph], None]], Rule]:
    """A function of a :class:`RuleGraph` as a rule; ``says``: what the framework does, in words.

    InputError without words.
    """
    if not says.strip():
        raise InputError('a rule says in words what the framework does: @rule("...")')
    return lambda function: Rule(says, function)


def collective(
    name: str,
    *,
    sms: int,
    sm_bytes_per_s: float = math.inf,
    nvlink_share: float = 1.0,
    network_share: float = 1.0,
    start_s: float | None = None,
    reduces: bool = False,
    gives_part: bool = False,
    gets_part: bool = False,
) -> Callable[[Callable[[Sequence[int]], Iterable[Flow]]], str]:
    """A collective that a kernel of one's own carries out, by its flows; gives its name.

        @collective("moe_exchange", sms=20, sm_bytes_per_s=16e9)
        def moe_exchange(nodes):
            for src in range(len(nodes)):
                for dst in range(len(nodes)):
                    if src != dst:
                        yield src, dst, 1 / len(nodes)

    ``nodes[i]`` is the number of the node of member ``i``; a flow is (source, destination, bytes per byte of
    the collective's size).  The kernel holds ``sms`` SMs from its launch to its end (0: copy engines or NICs
    do the work), each sends ``sm_bytes_per_s``; ``nvlink_share`` and ``network_share`` are what it reaches of
    the rate of NVLink and of NICs, ``start_s`` from its launch to the first byte (None: as NCCL's messages).
    ``gives_part``, ``gets_part``, ``reduces``: as :class:`simcore.collectives.kinds.Collective` says.

    InputError for a name that the program has, and numbers that cannot be.
    """

    def define(function: Callable[[Sequence[int]], Iterable[Flow]]) -> str:
        kernel = FlowKernel(sms, function, sm_bytes_per_s, nvlink_share, network_share, start_s)
        COLLECTIVES.define(
            name, Collective(name, reduces=reduces, gives_part=gives_part, gets_part=gets_part, kernel=kernel)
        )
        return name

    return define


def point_to_point(
    name: str,
    *,
    sms: int = 0,
    sm_bytes_per_s: float = math.inf,
    nvlink_share: float = 1.0,
    network_share: float = 1.0,
    start_s: float | None = None,
) -> str:
    """A library's own way to send from one rank to another; gives its name.  As :func:`collective`."""
    kernel = FlowKernel(sms, None, sm_bytes_per_s, nvlink_share, network_share, start_s)
    COLLECTIVES.define(name, Collective(name, pair=True, kernel=kernel))
    return name


def load_rules(path: Path | str) -> tuple[Rule, ...]:
    """The rules of a Python file, in the order in which they stand there.

    The file is run.  InputError where it cannot be, naming the line, or has no rule.
    """
    file = Path(path)
    text = read_text(file, "rules")
    name = f"{_MODULE}{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    spec = spec_from_loader(name, loader=None, origin=str(file))
    assert spec is not None
    module = module_from_spec(spec)
    module.__file__ = str(file)
    before = list(sys.path)
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[name] = module
    try:
        exec(compile(text, str(file), "exec"), module.__dict__)
    except Exception as error:
        raise InputError(mistake_in(str(file), error)) from error
    finally:
        sys.path[:] = before
    found = tuple(one for one in vars(module).values() if isinstance(one, Rule))
    if not found:
        raise InputError(f'{file} has no rule: a function under @rule("what the framework does")')
    return found


def as_rules(given: Any) -> tuple[Rule, ...]:
    """Rules as Python gives them: a file, a rule, or several of either."""
    if isinstance(given, Rule):
        return (given,)
    if isinstance(given, str | Path):
        return load_rules(given)
    if isinstance(given, Iterable):
        return tuple(one for each in given for one in as_rules(each))
    raise InputError(f"rules are files or functions under @rule, not {given!r}")
