"""The entry page of a dump: the variants of a model, their stages and what runs eagerly between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from gqc.capture.islands import Island
from gqc.dump.folder import ENTRY, is_ours
from gqc.dump.measure import NodeMeasure
from gqc.dump.page import fill, read
from gqc.dump.precision import INT8, KEPT
from gqc.dump.reasons import EXPLAINED
from gqc.dump.settings import settings_text
from gqc.dump.snapshot import NodeRecord, Snapshot, exact_bytes
from gqc.dump.stage import StageDump
from gqc.policy import Policy
from gqc.text import bytes_text

if TYPE_CHECKING:
    from gqc.dump.dumper import VariantDump


def overview(model: str, variants: Sequence[VariantDump], eager: Sequence[str], policy: Policy) -> str:
    """The page as one text; its links are relative.

    Args:
        model: class name of the model.
        variants: those written so far.
        eager: kinds of calls that run without a variant, each with its reason.
        policy: under which it was compiled.
    """
    body = "\n".join([*map(_variant, variants), *_eager(eager)])
    lead = (
        "What the passes did with it. Each variant serves one kind of call; its graph is cut into stages around what "
        f"runs eagerly. Policy: {settings_text(policy)}."
    )
    return _page(model, lead, body)


def models_page(root: Path) -> str:
    """A page that leads to the dumps of all models below a folder."""
    names = [page.parent.name for page in sorted(root.glob(f"*/{ENTRY}")) if is_ours(page)]
    links = "\n".join(f'<li><h3><a href="{quote(name)}/{ENTRY}">{escape(name)} →</a></h3></li>' for name in names)
    return _page("Models", "What the passes did with each.", f'<section id="models">\n<ol>\n{links}\n</ol>\n</section>')


def _page(title: str, lead: str, body: str) -> str:
    style = read("base.css") + read("overview.css")
    return fill("overview.html", TITLE=escape(title), STYLE=style, LEAD=escape(lead), BODY=body)


def _variant(variant: VariantDump) -> str:
    number, _, mode = variant.name.removeprefix("variant").partition("_")
    several = len(variant.stages) > 1
    cards = "\n".join(
        _island(part) if isinstance(part, Island) else _stage(variant, part, several) for part in variant.parts
    )
    called = {"train": "training mode", "eval": "evaluation mode"}[mode]
    if not any(stage.snapshots[-1].gradients for stage in variant.stages.values()):
        called += ", without gradients"
    return f"""<section id="{variant.name}">
<h2>Variant {number}: {called} <small>{escape(variant.why)}</small></h2>
<ol>
{cards}
</ol>
</section>"""


def _stage(variant: VariantDump, number: int, several: bool) -> str:
    dump = variant.stages[number]
    folder, last = f"{variant.name}/stage{number}", dump.snapshots[-1]
    tiles = "".join(f"<div><b>{escape(much)}</b> {escape(what)}</div>" for much, what in _tiles(dump))
    layers = "".join(_layer(module, nodes) for module, nodes in _by_module(last).items())
    files = [dump.halves_name, "reasons.json", "errors.json", "graph.graphml"]
    title = f"Stage {number}" if several else "The whole model"
    links = ", ".join(f'<a href="{folder}/{file}">{file}</a>' for file in files)
    return f"""<li class="stage">
<h3><a href="{folder}/{ENTRY}">{title}: open the graph →</a></h3>
<div class="tiles">{tiles}</div>
<table><thead><tr><th>module</th><th>int8</th><th>full precision</th><th>why in full precision</th></tr></thead>
<tbody>{layers}</tbody></table>
{_structure(last.structure)}{_gathers(last)}<p>{escape(dump.measures.note)} Files: {links}</p>
</li>"""


def _structure(inputs: Sequence[NodeRecord]) -> str:
    if not inputs:
        return ""
    lines = ", ".join(dict.fromkeys(n.line for n in inputs if n.line))
    what = f"{len(inputs)} tensors come from integer arguments alone (self-loops, degrees, ends of edges) and are"
    return f"<p>Structure: {what} computed once a graph, in front of the stages: {escape(lines)}.</p>\n"


def _gathers(snapshot: Snapshot) -> str:
    count = sum(n.is_gather for n in snapshot.nodes)
    if not count:
        return ""
    return f"<p>{count} nodes gather or scatter rows by PyTorch's own ops. They are no primitives and stay float.</p>\n"


def _tiles(dump: StageDump) -> Iterator[tuple[str, str]]:
    last = dump.snapshots[-1]
    primitives = [n for n in last.nodes if n.kind]
    in_int8 = sum(n.precision == INT8 for n in primitives)
    yield f"{in_int8} of {len(primitives)}", "primitives compute in int8"
    if last.copies:
        yield str(len(last.copies)), f"int8 copies of tensors, read {sum(c.readers for c in last.copies)} times"
    if last.backward:
        exact = exact_bytes(dump.snapshots)
        instead = f", {bytes_text(exact)} in full precision" if exact is not None else ""
        yield bytes_text(sum(s.nbytes for s in last.saved)), f"saved for the backward{instead}"
    worst = _worst_gradient(dump.measures.nodes)
    if worst is not None:
        yield _percent(worst.relative), f"relative error of the worst gradient, {worst.gradient_of}"


def _worst_gradient(nodes: Sequence[NodeMeasure]) -> NodeMeasure | None:
    gradients = [n for n in nodes if n.gradient_of]
    return max(gradients, key=lambda n: (isinstance(n.relative, str), n.relative), default=None)


def _by_module(snapshot: Snapshot) -> dict[str, list[NodeRecord]]:
    modules: dict[str, list[NodeRecord]] = {}
    for node in snapshot.nodes:
        if node.kind:
            modules.setdefault(node.module, []).append(node)
    return modules


def _layer(module: str, nodes: Sequence[NodeRecord]) -> str:
    quantized = [n for n in nodes if n.precision == INT8]
    kept = [n for n in nodes if n.precision == KEPT]
    reasons = [n.kept for n in kept if not n.kept.startswith("backward of ")]
    why = "".join(map(_reason, dict.fromkeys(reasons or [n.kept for n in kept])))
    return f"""<tr>
<td class="mono">{escape(module or "(model)")}</td>
<td class="{INT8 if quantized else ""}">{_kinds(quantized)}</td>
<td class="{KEPT if kept else ""}">{_kinds(kept)}</td>
<td>{why}</td>
</tr>"""


def _reason(reason: str) -> str:
    more = next((text for rule, text in EXPLAINED.items() if reason.startswith(rule)), "")
    return f"<div>{escape(reason)} <small>{escape(more)}</small></div>"


def _kinds(nodes: Sequence[NodeRecord]) -> str:
    counts = Counter((n.half, n.kind) for n in nodes)
    halves: dict[str, list[str]] = {}
    for (half, kind), count in counts.items():
        halves.setdefault(half, []).append(f"{count} {kind}" if count > 1 else kind)
    return "".join(f"<div><small>{half}</small> {escape(', '.join(kinds))}</div>" for half, kinds in halves.items())


def _island(island: Island) -> str:
    return f"""<li class="island">
<h3>{escape(island.name)} runs eagerly</h3>
<p>{escape(island.reason)}</p>
</li>"""


def _eager(reasons: Sequence[str]) -> Iterator[str]:
    if reasons:
        items = "\n".join(f'<li class="island"><p>{escape(reason)}</p></li>' for reason in reasons)
        yield f"""<section id="eager">
<h2>Calls that run eagerly, in full precision</h2>
<ol>
{items}
</ol>
</section>"""


def _percent(x: float | str) -> str:
    return x if isinstance(x, str) else f"{100 * x:.3g} %"
