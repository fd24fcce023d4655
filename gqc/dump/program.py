"""A graph as a Python file that runs on its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from gqc.dump.precision import INT8
from gqc.dump.relations import NamedRelation, reversed_nodes
from gqc.dump.snapshot import STRUCTURE, NodeRecord, SavedRecord, Snapshot
from gqc.passes.nodes import BACKWARD, FORWARD
from gqc.passes.report import KEPT, QUANTIZED

_INLINE = 64
_PRINT = """
def show(results):
    for name, value in results.items():
        text = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else value
        print(f"{name:32} {text}")
"""


def joint_program(snapshot: Snapshot, inputs: Sequence[str], relations: Sequence[NamedRelation], about: str) -> str:
    """Forward and backward as one function ``joint``, whose gradients come back by the name of what they belong to."""
    lines = [*_head(about, snapshot), "", "", *_signature("joint", _placeholders(snapshot))]
    late = snapshot.backward - snapshot.forward
    lines += _body(snapshot.nodes, relations, headings={n.name: n.name in late for n in snapshot.nodes})
    lines += [
        "",
        f"    outputs = {_tuple(snapshot.outputs)}",
        f"    gradients = {_dict(snapshot.gradients)}",
        "    return outputs, gradients",
        "",
        "",
        *inputs,
        "",
        "",
        *_PRINT.strip("\n").splitlines(),
        "",
        "",
        'if __name__ == "__main__":',
        "    torch.manual_seed(0)",
        "    outputs, gradients = joint(**example_inputs())",
        '    show({f"output {i}": value for i, value in enumerate(outputs)})',
        '    show({f"gradient of {name}": value for name, value in gradients.items()})',
    ]
    return "\n".join(lines) + "\n"


def halves_program(snapshot: Snapshot, inputs: Sequence[str], relations: Sequence[NamedRelation], about: str) -> str:
    """The two halves as functions ``forward`` and ``backward``, and what is saved between them."""
    tangents = [n for n in _placeholders(snapshot) if n.half == BACKWARD]
    primals = [n for n in _placeholders(snapshot) if n.half == FORWARD]
    records = {n.name: n for n in snapshot.nodes}
    saved = {s.name for s in snapshot.saved}
    lines = [*_head(about, snapshot), "", "", *_saved_table(snapshot.saved)]
    lines += ["", "", *_signature("forward", primals)]
    ran = [n for n in snapshot.nodes if n.name in snapshot.forward or n.is_placeholder]
    lines += _body(ran, relations, given={n.name for n in primals})
    lines += ["", f"    outputs = {_tuple(snapshot.outputs)}"]
    lines += [f"    saved = {_tuple([s.name for s in snapshot.saved])}", "    return outputs, saved"]
    if tangents:
        arguments = [*(records[s.name] for s in snapshot.saved), *tangents]
        ran = [n for n in snapshot.nodes if n.name in snapshot.backward and n.name not in saved]
        lines += ["", "", *_signature("backward", arguments)]
        lines += _body(ran, relations, given={n.name for n in arguments})
        lines += ["", f"    gradients = {_dict(snapshot.gradients)}", "    return gradients"]
    lines += ["", "", *inputs, "", "", *_PRINT.strip("\n").splitlines(), "", "", 'if __name__ == "__main__":']
    lines += ["    torch.manual_seed(0)", "    inputs = example_inputs()"]
    lines += [f"    tangents = {_list([f'inputs.pop({n.name!r})' for n in tangents])}"]
    lines += ["    outputs, saved = forward(**inputs)"]
    lines += ['    show({f"output {i}": value for i, value in enumerate(outputs)})']
    if tangents:
        lines += ["    gradients = backward(*saved, *tangents)"]
        lines += ['    show({f"gradient of {name}": value for name, value in gradients.items()})']
    return "\n".join(lines) + "\n"


def node_comment(node: NodeRecord) -> str:
    """Type and origin of a node."""
    module = f"{node.module} ({node.layer})" if node.module and node.layer else node.module or node.layer
    place = ", ".join(filter(None, (module, node.line)))
    about = f"{node.meaning}, {place}" if node.meaning == STRUCTURE else node.meaning or place
    return " | ".join(filter(None, (node.type, about)))


def mark_comment(node: NodeRecord) -> str:
    """What was decided about a primitive so far, ``""`` for other nodes."""
    if not node.kind:
        return ""
    if node.kept:
        return f"{node.primitive}, {KEPT} in full precision: {node.kept}"
    return f"{node.primitive}, {QUANTIZED}" if node.precision == INT8 else node.primitive


def _head(about: str, snapshot: Snapshot) -> Iterator[str]:
    yield f'"""{about}"""'
    yield ""
    yield from (f"import {name}" for name in snapshot.modules)
    yield from ([""] if snapshot.modules else [])
    yield "import torch"
    yield ""
    yield "import gqc.runtime.ops  # registers torch.ops.gqc"
    yield ""
    yield "aten, ops = torch.ops.aten, torch.ops.gqc"
    yield from (f"# ops.{signature}" for signature in snapshot.signatures)
    for name, value in snapshot.constants.items():
        yield f"{name} = {_constant(value)}"


def _constant(value: Tensor) -> str:
    if value.numel() <= _INLINE:
        return f"torch.tensor({value.tolist()}, dtype={value.dtype})"
    return f"torch.zeros({tuple(value.shape)}, dtype={value.dtype})  # its values are not part of this file"


def _placeholders(snapshot: Snapshot) -> list[NodeRecord]:
    return [n for n in snapshot.nodes if n.is_placeholder]


def _signature(name: str, arguments: Sequence[NodeRecord]) -> Iterator[str]:
    yield f"def {name}("
    for node in arguments:
        yield f"    {node.name},  # {node_comment(node)}"
    yield "):"


def _body(
    nodes: Sequence[NodeRecord],
    relations: Sequence[NamedRelation],
    given: Collection[str] = (),
    headings: dict[str, bool] | None = None,
) -> Iterator[str]:
    """The lines that compute ``nodes`` but those ``given``; with a heading where the half changes."""
    code = "\n".join(n.code for n in nodes)
    for relation in relations:
        listed = {relation.name: relation.nodes, f"{relation.name}_reversed": reversed_nodes(relation)}
        for name, parts in listed.items():
            if f"({name}," in code:
                yield f"    {name} = {_list([n.name for n in parts])}"
    in_backward = None
    for node in nodes:
        if node.is_placeholder or node.name in given:
            continue
        if headings is not None and headings[node.name] is not in_backward:
            in_backward = headings[node.name]
            yield f"\n    # ---- {BACKWARD if in_backward else FORWARD}"
        mark = mark_comment(node)
        if mark:
            yield f"    # {mark}"
        yield f"    {node.name} = {node.code}  # {node_comment(node)}"


def _saved_table(saved: Sequence[SavedRecord]) -> Iterator[str]:
    yield "# Saved for the backward, bytes at the example call; what the caller holds anyway costs nothing."
    for value in saved:
        yield f"# {'held' if value.held else f'{value.nbytes:,}':>10} {value.name}  {value.type}"
    yield f"# {sum(value.nbytes for value in saved):>10,} in all"


def _tuple(names: Sequence[str | None]) -> str:
    return f"({', '.join(map(str, names))}{',' if len(names) == 1 else ''})"


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"


def _dict(names: dict[str, str]) -> str:
    return f"{{{', '.join(f'{key!r}: {value}' for key, value in names.items())}}}"
