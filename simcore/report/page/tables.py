"""Tables of a run's page: kernels, links, critical path."""

from __future__ import annotations

from html import escape
from typing import Final

from simcore.analysis.critical_path import CriticalPath
from simcore.analysis.links import KINDS, StepLinks
from simcore.analysis.step import StepAnalysis
from simcore.report.page.document import bars, lines, scrolled, section, shortened, table
from simcore.units import format_bytes, format_time, ps_from_s, s_from_ps

_SHOWN: Final = 40
_FEW: Final = 12
_MOST_NODES: Final = 40


def kernel_section(analysis: StepAnalysis) -> str:
    """Kernels on a roofline and as a table, and communication."""
    head = ("Kernel", "Calls", "Time", "Share", "Slowed by sharing", "TFLOP/s", "TB/s")
    ranks, step = analysis.num_ranks, analysis.step_ps
    rows = []
    for (name,), total in analysis.kernels[:_SHOWN]:
        seconds = s_from_ps(total.time_ps)
        slowed = total.time_ps / total.alone_ps - 1 if total.alone_ps else 0.0
        flops, moved = (
            amount / seconds / 1e12 if seconds else 0.0 for amount in (total.flops, total.num_bytes)
        )
        rows.append((
            name, _count(total.count / ranks),
            (format_time(total.time_ps / ranks), total.time_ps / ranks),
            (f"{total.time_ps / ranks / step:.1%}", total.time_ps / ranks / step), (f"{slowed:+.1%}", slowed),
            (f"{flops:,.1f}" if flops else "-", flops), (f"{moved:.2f}" if moved else "-", moved),
        ))  # fmt: skip
    moves = [
        (
            " ".join(filter(None, key)), _count(total.count / ranks),
            (format_time(total.time_ps / ranks), total.time_ps / ranks),
            (f"{total.time_ps / ranks / step:.1%}", total.time_ps / ranks / step),
            (format_bytes(total.num_bytes / ranks), total.num_bytes / ranks),
        )
        for key, total in analysis.collectives[:_SHOWN]
    ]  # fmt: skip
    label = "Kernels on a roofline; the table has the numbers"
    roofline = f'<div id="roofline-chart" role="img" aria-label="{label}"></div>'
    return section(
        "kernels", "Kernels and communication", roofline,
        shortened(head, rows, _FEW, caption="Kernels, mean of all ranks"),
        shortened(("Communication", "Calls", "Time", "Share", "Bytes"), moves, _FEW, caption="Communication")
        if moves else "",
        intro="Mean of all ranks; a head sorts its column. Left of the roof's edge memory bounds a kernel,"
        " right of it products do; the larger a circle, the more of the step.",
    )  # fmt: skip


def _count(number: float) -> tuple[str, float]:
    return (f"{number:,.0f}" if number >= 10 else f"{number:.3g}"), number


def links_section(links: StepLinks) -> str:
    """How full links are, node by node, and who uses the fullest."""
    if not links.links:
        return section("links", "Links", lines(["Nothing was sent over a link."]))
    parts = []
    if links.nodes:
        wide = max(len(shares) for node in links.nodes for shares in node.shares.values())
        kinds = [kind for kind in KINDS if any(any(node.shares[kind]) for node in links.nodes)]
        head = "".join(f'<th scope="colgroup" colspan="{wide}">{escape(kind)}</th>' for kind in kinds)
        body = []
        for node in links.nodes[:_MOST_NODES]:
            last = node.first + node.count - 1
            named = f"node {node.first}" if node.count == 1 else f"nodes {node.first} to {last}"
            cells = "".join(
                _cell(share, kind, gpu) for kind in kinds for gpu, share in enumerate(node.shares[kind])
            )
            body.append(f'<tr><th scope="row">{named}</th>{cells}</tr>')
        more = len(links.nodes) - _MOST_NODES
        body += [f"<tr><th>{more} more</th></tr>"] if more > 0 else []
        caption = "Mean use of each GPU's links, by node"
        top = f'<caption class="unseen">{caption}</caption><thead><tr><th scope="col">Node</th>{head}</tr>'
        content = f'<table class="heat">{top}</thead><tbody>{"".join(body)}</tbody></table>'
        parts.append(scrolled(content, caption))
    first = links.links[0]
    rows = [
        (
            one.name, (f"{one.share:.1%}" if one.capacity else "-", one.share), (_rate(one.mean), one.mean),
            (_rate(one.highest), one.highest), (format_bytes(one.num_bytes), one.num_bytes),
        )
        for one in links.links[:12]
    ]  # fmt: skip
    parts.append(
        table(("Fullest links", "Mean use", "Mean rate", "Highest rate", "Bytes"), rows, sortable=True)
    )
    users = [
        (
            f"{name} of {group}" if group else name,
            (format_bytes(num_bytes), num_bytes),
            (format_time(ps_from_s(s)), s),
        )
        for name, group, num_bytes, s in links.users[:8]
    ]
    if users:
        parts.append(table((f"Who uses {first.name}", "Bytes", "Time"), users))
    return section(
        "links", "Links", *parts, intro="Mean use over the step, as a share of what a link carries."
    )


def _cell(share: float | None, kind: str, gpu: int) -> str:
    if share is None:
        return "<td></td>"
    return f'<td style="--u:{share:.4f}" title="{kind} of GPU {gpu}: {share:.1%}">{100 * share:.0f}</td>'


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.1f} GB/s"


def path_section(path: CriticalPath) -> str:
    """What the step consists of."""
    rows = [
        (
            " ".join(filter(None, key)), (f"{total.count:,}", float(total.count)),
            (format_time(total.time_ps), float(total.time_ps)),
            (f"{total.time_ps / path.step_ps:.1%}", total.time_ps / path.step_ps),
        )
        for key, total in path.parts[:_SHOWN]
    ]  # fmt: skip
    stages = [
        (f"stage {stage}", format_time(time), 0.0, time / path.step_ps, "work")
        for stage, time in path.by_stage.items()
    ]
    return section(
        "path", "Critical path",
        shortened(("On the critical path", "Calls", "Time", "Share"), rows, _FEW, caption="Critical path"),
        bars(stages, "Critical path by stage") if len(stages) > 1 else "",
        intro="The chain of work that the step consists of: only what is on it makes the step shorter.",
    )  # fmt: skip
