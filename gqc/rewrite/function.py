"""A graph as the source of one Python function."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor, fx

from gqc.capture.islands import Island
from gqc.errors import RewriteError
from gqc.passes.nodes import aten, by_name, mutates, origin
from gqc.rewrite.calls import call_text, literal
from gqc.rewrite.layout import WIDTH, Group, Operation, Text, comment, deletions, statement, tuple_of
from gqc.rewrite.names import Scope, identifier
from gqc.rewrite.source_lines import SourceLines, Statement
from gqc.runtime.pointwise.program import parse

RELATION_SIZE = 8
_REVERSED = (3, 4, 5, 0, 1, 2, 7, 6)
_PART_NAMES = ("CSC_INDPTR", "CSC_INDICES", "CSC_EIDS", "CSR_INDPTR", "CSR_INDICES", "CSR_EIDS", "SRC", "DST")
_LONGEST_INLINE = 56
_LONGEST_SIZE = 32

_VIEWS = frozenset(
    {
        *(aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default, aten._unsafe_view.default),
        *(aten.reshape.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
        *(aten.expand.default, aten.slice.Tensor, aten.select.int, aten.detach.default, aten.alias.default),
    }
)
_VIEW_METHODS = frozenset({"view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "detach"})

_RESULTS = {
    "quantize": ("int8", "scale"),
    "quantize_int4": ("int4", "scale"),
    **dict.fromkeys(("qgemm", "qgemm_int4", "qspmm", "qspmm_int4"), ("", "absmax")),
    **dict.fromkeys(("qtyped_spmm", "qtyped_spmm_bwd_b"), ("", "absmax")),
    "qgemm_epilogue": ("", "absmax", "positive"),
    "quantize_qgemm": ("", "absmax", "operand_int8", "operand_scale", "positive"),
    "qgemm_int8": ("int8", "scale", "positive"),
    "qspmm_cmp": ("", "arg"),
    "spmm_cmp": ("", "arg"),
    "gat": ("", "absmax", "max", "sum"),
    "gat_bwd": ("", "absmax", "d_el", "d_er"),
    "attend": ("", "absmax", "max", "sum"),
    "attend_bwd": ("", "absmax", "d_k", "d_q", "d_a"),
    "cross_entropy": ("loss", "counted"),
    "dropout": ("", "mask"),
    "native_dropout": ("", "mask"),
    "native_layer_norm": ("", "mean", "rstd"),
    "_native_batch_norm_legit_functional": ("", "mean", "rstd", "running_mean", "running_var"),
    "_native_batch_norm_legit_no_training": ("", "mean", "rstd"),
    "native_batch_norm_backward": ("input", "weight", "bias"),
    "native_layer_norm_backward": ("input", "weight", "bias"),
}
"""What the results of an op with several are called."""

_BEFORE_PROGRAM = {"quantize_qgemm_pointwise": ("operand_int8", "operand_scale")}
"""What the results of an op are called that stand before those of its pointwise program."""

_ROLES = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "linear", "qgemm", "qgemm_int4"), "product"),
    **dict.fromkeys(("qgemm_epilogue", "quantize_qgemm", "qgemm_int8"), "product"),
    **dict.fromkeys(("mm_pointwise", "qgemm_pointwise", "quantize_qgemm_pointwise"), "product"),
    **dict.fromkeys(("spmm_pointwise", "qspmm_pointwise"), "aggregated"),
    **dict.fromkeys(("spmm", "qspmm", "qspmm_int4", "spmm_cmp", "qspmm_cmp"), "aggregated"),
    **dict.fromkeys(("sddmm", "qsddmm", "qsddmm_int4"), "on_edges"),
    **dict.fromkeys(("gather_mm", "segment_mm", "gather_mm_bwd_b", "segment_mm_bwd_b"), "typed_product"),
    **dict.fromkeys(("typed_spmm", "qtyped_spmm", "typed_spmm_bwd_b", "qtyped_spmm_bwd_b"), "typed_sum"),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze"), "view"),
    **dict.fromkeys(("t", "transpose", "permute"), "transposed"),
    **dict.fromkeys(("edge_softmax", "edge_softmax_bwd"), "alpha"),
    **dict.fromkeys(("gat", "gat_bwd", "attend", "attend_bwd"), "attended"),
    **dict.fromkeys(("_native_batch_norm_legit_functional", "native_batch_norm_backward"), "norm"),
    "_native_batch_norm_legit_no_training": "norm",
    "_log_softmax": "log_softmax",
    "__bool__": "decision",
}
"""What the result of an op is called where the user's program has no name for it."""


@dataclass(frozen=True)
class RelationPart:
    """One of the eight tensors of a relation."""

    relation: str
    part: int

    def __str__(self) -> str:
        return f"{self.relation}[{_PART_NAMES[self.part]}]"

    def size(self) -> str:
        """Its length."""
        if self.part in (0, 3):
            return f"{'num_dst' if self.part == 0 else 'num_src'}({self.relation}) + 1"
        return f"num_edges({self.relation})"


Given = str | RelationPart


@dataclass
class _Value:
    """What a node is in the function: a variable, or an expression that its only user takes in."""

    text: Text
    variables: frozenset[str] = frozenset()
    tensor: bool = False


@dataclass
class _Group:
    """Statements that come from one line of the user's program."""

    header: str
    lines: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    defined: list[str] = field(default_factory=list)


class FunctionWriter:
    """Writes the statements of a graph.

    Args:
        graph: what the function computes.
        given: what its placeholders are called.
        lines: finds the user's program.
        constants: text of the tensors that get_attr nodes stand for.
        sizes: sizes of placeholders that can be told without them, by axis.
        results: names that results must have.
        tangents: placeholders that are gradients.
    """

    def __init__(
        self,
        graph: fx.Graph,
        given: Mapping[fx.Node, Given],
        lines: SourceLines,
        constants: Mapping[str, str],
        sizes: Mapping[fx.Node, Mapping[int, str]] | None = None,
        results: Mapping[fx.Node, str] | None = None,
        tangents: Iterable[fx.Node] = (),
    ) -> None:
        self._graph, self._given, self._lines, self._constants = graph, given, lines, constants
        names = {g if isinstance(g, str) else g.relation for g in given.values()}
        self._sizes = sizes or {}
        self._scope = Scope(names)
        self._wanted = self._through_views(results or {})
        self._late = set(tangents)
        self._values: dict[fx.Node, _Value] = {}
        self._groups: list[_Group] = []
        self._returned = set(graph.output_node().all_input_nodes)
        self._inlines = not any(mutates(n) or n.meta.get("writes") for n in graph.nodes)
        self._last = self._last_of_lines()

    # ---- the function

    def write(self) -> list[str]:
        """The function's statements without its return."""
        for node in self._graph.nodes:
            if node.op == "placeholder":
                given = self._given.get(node)
                if given is not None:
                    self._values[node] = _Value(str(given), frozenset(), True)
            elif node.op == "get_attr":
                self._values[node] = _Value(self._constants[str(node.target)])
            elif node.op != "output":
                if any(n in self._late for n in node.all_input_nodes):
                    self._late.add(node)
                self._node(node)
        return self._lay_out()

    def text(self, value: Any) -> Text:
        """What a result is called, for the return statement."""
        return self._argument(value)[0]

    # ---- statements

    def _node(self, node: fx.Node) -> None:
        if node in self._values:  # taken apart where it was computed
            return
        if node.target in (aten.detach.default, aten.alias.default) and node not in self._returned:
            self._values[node] = self._values[node.args[0]]
            return
        if self._is_relation(node):
            self._define(node, [(node, self._name(node))])
            return
        if _is_size(node):
            self._size(node)
            return
        if isinstance(node.target, torch._ops.OpOverload) and isinstance(node.meta.get("val"), (tuple, list)):
            self._several(node)
            return
        text, variables = self._text(node)
        if _is_transpose(node) and _is_transpose(node.args[0]):
            self._values[node] = self._values[node.args[0].args[0]]
        elif self._is_inlined(node, text):
            self._values[node] = _Value(text, variables, True)
        elif not node.users and not (mutates(node) or node.meta.get("writes")):
            return
        elif not node.users or node.target is aten.copy_.default:
            self._emit(node, "", text, variables, [])
        else:
            self._define(node, [(node, self._name(node))])

    def _define(self, node: fx.Node, targets: list[tuple[fx.Node | None, str]]) -> None:
        text, variables = self._text(node)
        names = [name for _, name in targets]
        is_list = isinstance(node.meta.get("val"), list) and not self._is_relation(node)
        prefix = f"({names[0]},) = " if is_list and len(names) == 1 else f"{', '.join(names)} = "
        head = text.head if isinstance(text, Group) else ""
        if len(prefix) + len(head) + 4 > WIDTH and len(names) > 1:
            results = self._scope.take("results")
            self._emit(node, f"{results} = ", text, variables, [results])
            for i, name in enumerate(names):
                if name != "_":
                    self._emit(node, f"{name} = ", f"{results}[{i}]", frozenset({results}), [name])
        else:
            self._emit(node, prefix, text, variables, [name for name in names if name != "_"])
        for target, name in targets:
            if target is not None:
                self._values[target] = _Value(name, frozenset({name}), _is_large(target))

    def _several(self, node: fx.Node) -> None:
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        base = ""
        targets: list[tuple[fx.Node | None, str]] = []
        op = node.target._schema.name.split("::")[1]  # type: ignore[union-attr]
        roles = _RESULTS.get(op, ())
        if op.endswith("pointwise"):
            roles = (*_BEFORE_PROGRAM.get(op, ()), *_program_results(by_name(node)["program"]))
        for i in range(len(node.meta["val"])):
            part = parts.get(i)
            if part is None or not (part.users or part in self._returned):
                targets.append((None, "_"))
            elif op == "quantize":
                values = self._quantized_name(node.args[0])  # type: ignore[arg-type]
                targets.append((part, self._scope.take(f"{values}_{roles[i]}")))
            elif part in self._wanted:
                targets.append((part, self._scope.take(self._wanted[part])))
            else:
                base = base or self._base(part if i == 0 and part in self._last else node)
                role = roles[i] if i < len(roles) else str(i)
                targets.append((part, self._scope.take(f"{base}_{role}" if role else base)))
        self._define(node, targets)

    def _quantized_name(self, values: fx.Node) -> str:
        text = str(self._values[values].text)
        return text if text.isidentifier() else self._base(values)

    def _size(self, node: fx.Node) -> None:
        text, variables = self._text(node)
        source = node.args[0] if node.target is aten.sym_size.int else None
        if isinstance(source, fx.Node) and isinstance(self._given.get(source), RelationPart):
            text = self._given[source].size()  # type: ignore[union-attr]
        is_read = node.target is aten.sym_size.int
        if source in self._sizes and is_read:
            text = self._sizes[source].get(node.args[1], text)  # type: ignore[index,call-overload]
        is_long = isinstance(text, Operation) and len(str(text)) > _LONGEST_SIZE
        # A tensor need not live for its size.
        if node in self._returned or is_long or (is_read and variables):
            first = re.split(r"\W", str(text).removeprefix("num_"))[0]
            base = min(variables, default="") or (first if first.isidentifier() else "total")
            name = self._scope.take(f"{base}_size_{node.args[1]}" if is_read and node.args[1] else f"{base}_rows")
            self._emit(node, f"{name} = ", text, variables, [])
            self._values[node] = _Value(name)
        else:
            self._values[node] = _Value(text, variables)

    def _emit(self, node: fx.Node, prefix: str, text: Text, variables: frozenset[str], defined: Sequence[str]) -> None:
        header = self._header(node)
        if not self._groups or (header and self._groups[-1].header != header):
            self._groups.append(_Group(header))
        group = self._groups[-1]
        group.lines += statement(prefix, text)
        group.used |= variables
        group.defined += defined

    def _lay_out(self) -> list[str]:
        """Groups with their headers; variables are deleted at the end of the group that last uses them."""
        kept = {v for node in self._returned if node in self._values for v in self._values[node].variables}
        small = {v for value in self._values.values() if not value.tensor for v in value.variables}
        last: dict[str, int] = {}
        for i, group in enumerate(self._groups):
            last.update(dict.fromkeys((*group.defined, *sorted(group.used)), i))
        lines: list[str] = []
        for i, group in enumerate(self._groups):
            lines += [""] * bool(lines) + [comment(group.header)] * bool(group.header) + group.lines
            if i + 1 < len(self._groups):
                dead = [name for name, end in last.items() if end == i and name not in kept | small]
                lines += deletions(dead)
        return lines

    # ---- expressions

    def _text(self, node: fx.Node) -> tuple[Text, frozenset[str]]:
        variables: set[str] = set()

        def ref(value: Any) -> Text:
            text, used = self._argument(value)
            variables.update(used)
            return text

        try:
            text = call_text(node, ref)
        except RewriteError as error:
            where = origin(node).module
            raise RewriteError(f"{f'module {where!r}' if where else 'the model'}: {error}") from error
        return text, frozenset(variables)

    def _argument(self, value: Any) -> tuple[Text, frozenset[str]]:
        if isinstance(value, fx.Node):
            known = self._values[value]
            return known.text, known.variables
        if isinstance(value, (list, tuple)):
            relation = self._relation(value)
            if relation is not None:
                return relation
            items = [self._argument(x) for x in value]
            texts, used = [text for text, _ in items], frozenset(v for _, used in items for v in used)
            return (tuple_of(texts) if isinstance(value, tuple) else Group("[", texts, "]")), used
        if isinstance(value, (SymInt, SymFloat, SymBool)):
            raise RewriteError(f"the size {value} is not computed by the graph")
        return literal(value), frozenset()

    def _relation(self, items: Sequence[Any]) -> tuple[Text, frozenset[str]] | None:
        """The name of the relation whose tensors a list holds."""
        if len(items) != RELATION_SIZE or not all(isinstance(x, fx.Node) for x in items):
            return None
        givens = [self._given.get(x) for x in items]
        if all(isinstance(g, RelationPart) for g in givens):
            owners = {g.relation for g in givens}  # type: ignore[union-attr]
            parts = tuple(g.part for g in givens)  # type: ignore[union-attr]
            used: frozenset[str] = frozenset()
        elif all(x.target is operator.getitem and self._is_relation(x.args[0]) for x in items):
            owners = {str(self._values[x.args[0]].text) for x in items}
            parts = tuple(x.args[1] for x in items)
            used = frozenset(owners)
        else:
            return None
        if len(owners) != 1 or parts not in (tuple(range(RELATION_SIZE)), _REVERSED):
            return None
        (owner,) = owners
        return (owner if parts != _REVERSED else f"reverse({owner})"), used

    def _is_relation(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and node.target is torch.ops.gqc.relation.default

    def _is_inlined(self, node: fx.Node, text: Text) -> bool:
        if _is_transpose(node) and node.users and all(map(_is_transpose, node.users)):
            return True
        if not (self._inlines and _is_view(node)) or len(node.users) != 1:
            return False
        if len(str(text)) > _LONGEST_INLINE or ")." in str(text):
            return False
        if node in self._wanted:  # a result, if what it views has its name
            return node.args[0] in self._wanted
        return node not in self._returned

    # ---- names

    def _name(self, node: fx.Node) -> str:
        return self._scope.take(self._wanted.get(node) or self._base(node))

    def _base(self, node: fx.Node) -> str:
        """A name after the module and the user's variable, or what the op computes."""
        made = origin(node)
        if "custom" not in node.meta and node.all_input_nodes:  # a sum of gradients
            made = origin(node.all_input_nodes[0])
        path = identifier(made.module) if made.module else ""
        if node in self._late:
            return "_".join(filter(None, (path, _role(node), "grad")))
        found = self._statement(node)
        if found.own and node in self._last and found.variable:
            role = identifier(found.variable)
        elif made.module and node in self._last and not self._lines.has_own(made.module):
            role = "out"
        else:
            role = _role(node)
        return "_".join(filter(None, (path, role)))

    def _header(self, node: fx.Node) -> str:
        made = origin(node)
        recorded = node.meta.get("custom", {}).get("gqc")
        if not recorded:
            return ""
        where = f"{made.module} ({made.type})" if made.module else made.type
        line = recorded.get("line", "")
        if line.startswith("torch_geometric."):  # PyG has generated that file, under another name in each process
            return where
        if node in self._late:
            return f"gradient of {where}, {line}"
        found = self._statement(node)
        return f"{where}, {line}: {found.text}" if found.text else f"{where}, {line}"

    def _statement(self, node: fx.Node) -> Statement:
        recorded = node.meta.get("custom", {}).get("gqc", {})
        return self._lines.find(recorded.get("module", ""), recorded.get("line", ""))

    def _last_of_lines(self) -> set[fx.Node]:
        """The last node of each run of nodes that one line of the user's program has made."""
        last: dict[tuple[str, str], fx.Node] = {}
        for node in self._graph.nodes:
            recorded = node.meta.get("custom", {}).get("gqc")
            value = node.meta.get("val")
            if recorded and node.op in ("call_function", "call_method") and not _is_size(node) and value is not None:
                if _is_helper(node):
                    continue
                last[recorded["module"], recorded["line"]] = node
        found = set(last.values())
        for (module, line), node in last.items():
            while _is_view(node) and len(node.users) == 1:  # taken in by its user, so what it views gets the name
                node = node.args[0]
                recorded = node.meta.get("custom", {}).get("gqc", {})
                if node.op == "placeholder" or (recorded.get("module"), recorded.get("line")) != (module, line):
                    break
                found.add(node)
        return found

    def _through_views(self, results: Mapping[fx.Node, str]) -> dict[fx.Node, str]:
        """The names of results, also for what is only computed to be viewed as a result."""
        wanted = dict(results)
        for node, name in results.items():
            while (node.target in _VIEWS or node.target is operator.getitem) and node.op == "call_function":
                node = node.args[0]  # type: ignore[assignment]
                if len(node.users) != 1 or node in wanted or node.op == "placeholder":
                    break
                wanted[node] = name
        return wanted


def _role(node: fx.Node) -> str:
    if node.target is operator.getitem and isinstance(node.args[0].target, torch._ops.OpOverload):  # type: ignore[union-attr]
        node = node.args[0]  # type: ignore[assignment]
    target = node.target
    name = target._schema.name.split("::")[1] if isinstance(target, torch._ops.OpOverload) else ""
    if isinstance(target, Island):
        name = target.name
    name = name or (str(target) if node.op == "call_method" else getattr(target, "__name__", "value"))
    role = _ROLES.get(name, identifier(name))
    return role.removesuffix("_backward").removesuffix("_bwd") if node.op == "call_function" else role


def _program_results(program: str) -> list[str]:
    """What the results of a pointwise program are called."""
    roles: list[str] = []
    for output in parse(program).outputs:
        if output.form == "int8":
            roles += ["int8", "scale"]
        elif output.axis is not None:
            roles.append("sum")
        else:
            roles.append({"bool": "mask", "bits": "mask", "absmax": "absmax"}.get(output.form, ""))
    return roles


def _is_view(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _VIEW_METHODS
    return node.target in _VIEWS or (node.target is operator.getitem and isinstance(node.args[1], (int, slice)))


def _is_transpose(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.t.default


def _is_helper(node: fx.Node) -> bool:
    """Whether a node was added for an op of the user's line, and is not what the line computes."""
    name = node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else ""
    return name.endswith(("::quantize", "::absmax", "::gt", "::le")) or (
        node.target is operator.getitem
        and isinstance(node.args[0], fx.Node)
        and (node.args[1] != 0 or _is_helper(node.args[0]))
    )


def _is_size(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, (int, SymInt, SymFloat, SymBool)) and not isinstance(value, bool)


def _is_large(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() > 0
