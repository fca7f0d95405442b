"""Rules of a user's own: what his framework does to a step and this one does not know (docs/rules.md).

from simcore.rules import rule

@rule("our loss is scaled on the host, which waits for it")
def loss(graph):
    graph.ops(name="cross_entropy", phase="fwd").delay(us=40)
"""

from simcore.rules.apply import Ruled, apply_rules
from simcore.rules.declared import Rule, collective, load_rules, point_to_point, rule
from simcore.rules.ops import OpRow, Ops
from simcore.rules.view import Matched, RuleGraph

__all__ = [
    "Matched",
    "OpRow",
    "Ops",
    "Rule",
    "RuleGraph",
    "Ruled",
    "apply_rules",
    "collective",
    "load_rules",
    "point_to_point",
    "rule",
]
