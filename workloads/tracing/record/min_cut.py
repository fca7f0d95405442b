"""The cheapest set of nodes that separates two sides of a graph (Ford and Fulkerson's, costs on nodes)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

#: A node is entered at (node, False) and left at (node, True).
Place = tuple[int, bool]


def minimum_cut(
    costs: Mapping[int, int], edges: Iterable[tuple[int, int]], starts: Iterable[int], ends: Iterable[int]
) -> set[int]:
    """Nodes of the smallest total of ``costs`` on every path from ``starts`` to ``ends``; of several such
    sets the one nearest to ``starts``.

    A path may begin and end at one node.  Edges to or from nodes without a cost are left out.
    """
    flow = _Flow(costs, [(a, b) for a, b in edges if a in costs and b in costs], ends)
    begins = [start for start in starts if start in costs]
    for start in begins:
        while flow.push(start):
            pass
    reached = flow.reached(begins)
    return {node for node in costs if (node, False) in reached and (node, True) not in reached}


class _Flow:
    def __init__(
        self, costs: Mapping[int, int], edges: Iterable[tuple[int, int]], ends: Iterable[int]
    ) -> None:
        self._costs, self._ends = costs, set(ends)
        self._after: dict[int, list[int]] = defaultdict(list)
        self._before: dict[int, list[int]] = defaultdict(list)
        for source, target in edges:
            self._after[source].append(target)
            self._before[target].append(source)
        self._all = 1 + sum(costs.values())
        self._through: dict[int, int] = defaultdict(int)
        self._along: dict[tuple[int, int], int] = defaultdict(int)

    def _steps(self, place: Place) -> list[tuple[Place, int]]:
        """Where more can flow from ``place``, and how much."""
        node, left = place
        if left:
            found = [((target, False), self._all) for target in self._after.get(node, ())]
            back = [((node, False), self._through[node])]
        else:
            found = [((node, True), self._costs[node] - self._through[node])]
            back = [((source, True), self._along[source, node]) for source in self._before.get(node, ())]
        return [step for step in found + back if step[1] > 0]

    def _search(self, begins: Iterable[int]) -> dict[Place, tuple[Place, int] | None]:
        """Places to which more can flow, each with the one before it; an end that is left comes last."""
        came: dict[Place, tuple[Place, int] | None] = {(begin, False): None for begin in begins}
        waiting = deque(came)
        while waiting:
            place = waiting.popleft()
            for target, room in self._steps(place):
                if target not in came:
                    came[target] = (place, room)
                    waiting.append(target)
                    if target[1] and target[0] in self._ends:
                        return came
        return came

    def push(self, start: int) -> bool:
        """Send what one more path from ``start`` takes; False when there is none."""
        came = self._search([start])
        place = next(reversed(came))
        if not place[1] or place[0] not in self._ends:
            return False
        path, amount = [], self._all
        while (step := came[place]) is not None:
            path.append((step[0], place))
            place, amount = step[0], min(amount, step[1])
        for (node, left), (target, _) in path:
            if node == target:
                self._through[node] += -amount if left else amount
            elif left:
                self._along[node, target] += amount
            else:
                self._along[target, node] -= amount
        return True

    def reached(self, begins: Iterable[int]) -> set[Place]:
        """Places to which more could flow, once nothing can be pushed."""
        return set(self._search(begins))
