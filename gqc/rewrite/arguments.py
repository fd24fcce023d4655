"""How a rewritten model reads its arguments: the checks, and the name of every tensor of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from gqc.capture.graphs import adapter_of
from gqc.errors import RewriteError
from gqc.rewrite.calls import literal
from gqc.rewrite.function import RELATION_SIZE, Given, RelationPart
from gqc.rewrite.layout import WIDTH, Group, Text, keyword, statement, tuple_of
from gqc.rewrite.names import MODULE_NAMES, USED_BUILTINS, Scope, identifier

_CONSTANTS = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device)


@dataclass
class Arguments:
    """The arguments of the example call.

    Attributes:
        signature: parameters of ``forward`` as they are written.
        given: what each tensor of the flat call is called, in order.
        sizes: source of the sizes of these tensors, by position and axis.
        graphs: source of each graph argument.
        as_passed: source of each tensor as the user passed it, by position.
        kinds: the constants that hold the kinds of the graphs.
        uses: positions of the tensors that the model reads.
    """

    signature: list[str] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    sizes: dict[tuple[int, int], str] = field(default_factory=dict)
    graphs: list[str] = field(default_factory=list)
    as_passed: dict[int, str] = field(default_factory=dict)
    kinds: dict[str, Group] = field(default_factory=dict)
    uses: set[int] = field(default_factory=set)
    _checks: list[Callable[[], list[str]]] = field(default_factory=list)

    def local(self, name: str) -> str:
        """What a variable of the methods is called, so that it hides no argument."""
        return Scope(self.names()).take(name)

    def names(self) -> set[str]:
        """The arguments and all that is named after them."""
        given = {g if isinstance(g, str) else g.relation for g in self.given}
        return given | {parameter.partition(":")[0] for parameter in self.signature}

    def checks(self) -> list[str]:
        """The statements that check the arguments and name their tensors; to be asked for last."""
        return [line for check in self._checks for line in check()]


class ArgumentReader:
    """Reads the example call in the order of :func:`gqc.capture.read_call`.

    Args:
        model: its ``forward`` gives the names.
        args, kwargs: the example call.
        dynamic: whether an axis of a tensor of the call, by its position, may have other sizes.

    Raises:
        RewriteError: an argument is of a kind that cannot be written down.
    """

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Callable[[int, int], bool]
    ) -> None:
        self.found = Arguments()
        self._dynamic = dynamic
        bound = _bound(model, args, kwargs)
        self._scope = Scope({name for name, *_ in bound})
        self._constants = Scope({name for name, *_ in bound} | {type(model).__name__})
        for i, (name, value, default) in enumerate(bound):
            if name in MODULE_NAMES | USED_BUILTINS:
                raise RewriteError(f"argument {name} of forward would hide {name}, which the source uses: rename it")
            self.found.signature.append(f"{name}: {_annotation(value)}{default}")
            self._read(value, name, name, i)

    def _read(self, value: Any, source: str, name: str, argument: int) -> None:
        if isinstance(value, Tensor):
            self._tensor(value, source, name)
        elif type(value) in (list, tuple, torch.Size):
            kind = "torch.Size" if isinstance(value, torch.Size) else type(value).__name__
            length = [literal(source), source, kind, str(len(value))]
            self._check(lambda: statement("", Group("check_length(", length), 8))
            for i, item in enumerate(value):
                self._read(item, f"{source}[{i}]", f"{name}_{i}", argument)
        elif type(value) is dict:
            self._check(lambda: _check_value(f"the keys of {source}", f"list({source})", list(value)))
            for key, item in value.items():
                self._read(item, f"{source}[{literal(key)}]", f"{name}_{identifier(str(key))}", argument)
        elif isinstance(value, _CONSTANTS):
            self._check(lambda: _check_value(source, source, value))
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            for key in value._fields:
                self._read(getattr(value, key), f"{source}.{key}", f"{name}_{key}", argument)
        elif (adapter := adapter_of(value)) is not None:
            self._graph(value, adapter, source, name)
        else:
            if isinstance(value, Number):
                raise RewriteError(
                    f"argument {source}: a number of type {type(value).__qualname__} cannot be written "
                    "down; pass one of Python, such as int(n)"
                )
            raise RewriteError(
                f"argument {source}: an object of type {type(value).__qualname__} cannot be written down; "
                "pass tensors, graphs, numbers, and lists, tuples or dicts of these"
            )

    def _check(self, check: Callable[[], list[str]]) -> None:
        self.found._checks.append(check)

    # ---- tensors

    def _tensor(self, value: Tensor, source: str, name: str, size: Callable[[int], str] | None = None) -> None:
        position = len(self.found.given)
        variable = name if source == name != "ctx" else self._scope.take(name)
        self.found.given.append(variable)
        self.found.as_passed[position] = source
        shape = [None if self._dynamic(position, axis) else n for axis, n in enumerate(value.shape)]
        for axis in range(value.dim()):
            known = size(axis) if size is not None else ""
            self.found.sizes[position, axis] = known or f"{variable}.shape[{axis}]"
        arguments = [literal(source), source, literal(value.dtype), str(tuple_of([literal(n) for n in shape]))]
        arguments += ["requires_grad=True"] * value.requires_grad

        def check() -> list[str]:
            if position not in self.found.uses and size is not None:
                return []
            read = position in self.found.uses
            return statement(f"{variable} = " if read else "", Group("tensor_argument(", arguments), 8)

        self._check(check)

    # ---- graphs

    def _graph(self, graph: Any, adapter: Any, source: str, name: str) -> None:
        self.found.graphs.append(source)
        schema, tensors = adapter.schema(graph), adapter.tensors(graph)
        if hasattr(schema, "etypes"):
            self._dgl_graph(graph, schema, tensors, source, name)
        else:
            self._data(graph, schema, tensors, source, name)

    def _kind(self, name: str, kind: Group) -> str:
        """The constant that holds a graph's kind; graphs of one kind share it."""
        for constant, known in self.found.kinds.items():
            if str(known) == str(kind):
                return constant
        constant = self._constants.take(name.upper())
        self.found.kinds[constant] = kind
        return constant

    def _dgl_graph(self, graph: Any, schema: Any, tensors: dict[str, Tensor], source: str, name: str) -> None:
        columns, count = schema.columns, len(schema.ntypes)
        items: list[Text] = [keyword("node_types", _tuple(schema.ntypes)), keyword("edge_types", _tuple(schema.etypes))]
        items += [keyword("node_columns", _tuple(columns[:count])), keyword("edge_columns", _tuple(columns[count:]))]
        items += ["block=True"] * bool(graph.is_block) + ["batched=True"] * schema.batched
        items += [f"index={literal(graph.idtype)}"] * (graph.idtype is not torch.int64)
        constant = self._kind(name, Group("GraphKind(", items))
        self._check(lambda: [f"        {constant}.check({literal(source)}, {source})"])
        relations = [self._relation_name(name, etype, schema) for etype in schema.etypes]
        self._check(lambda: _unpack(relations, f"relations({source})", self._used(relations)))
        nodes: dict[int, str] = {}
        for (start, end), relation in zip(schema.ends, relations, strict=True):
            nodes.setdefault(start, f"num_src({relation})")
            nodes.setdefault(end, f"num_dst({relation})")
        for key, value in tensors.items():
            kind, number, *rest = key.split(".", 2)
            if kind == "relation":
                self._part(value, relations[int(number)], schema.ends[int(number)], nodes, rest[0])
            elif kind in ("n", "e"):
                rows = nodes.get(int(number), "") if kind == "n" else f"num_edges({relations[int(number)]})"
                column = column_source(source, schema, key)
                named = f"{name}_{identifier(rest[0])}"
                self._tensor(value, column, named, lambda axis, rows=rows: rows if axis == 0 else "")  # type: ignore[misc]
            else:
                raise RewriteError(
                    f"argument {source}: a batched graph, or one with a node type without edges, cannot be written down"
                )

    def _used(self, relations: list[str]) -> set[str]:
        used = {self.found.given[i] for i in self.found.uses}
        return {r for r in relations if any(isinstance(g, RelationPart) and g.relation == r for g in used)}

    def _relation_name(self, name: str, etype: tuple[str, str, str], schema: Any) -> str:
        if len(schema.etypes) == 1:
            return self._scope.take(f"{name}_relation")
        unique = len({verb for _, verb, _ in schema.etypes}) == len(schema.etypes)
        return self._scope.take(f"{name}_{identifier(etype[1] if unique else '_'.join(etype))}")

    def _part(self, value: Tensor, relation: str, ends: tuple[int, int], nodes: dict[int, str], part: str) -> None:
        position = len(self.found.given)
        number = sum(isinstance(g, RelationPart) and g.relation == relation for g in self.found.given)
        assert number < RELATION_SIZE
        self.found.given.append(RelationPart(relation, number))
        size = f"{nodes[ends[1] if number == 0 else ends[0]]} + 1" if number in (0, 3) else f"num_edges({relation})"
        self.found.sizes[position, 0] = size

    def _data(self, data: Any, schema: Any, tensors: dict[str, Tensor], source: str, name: str) -> None:
        items: list[Text] = [literal(type(data).__name__), _tuple(schema.tensors)]
        if schema.constants:
            items.append(Group("{", [f"{literal(k)}: {literal(v)}" for k, v in schema.constants], "}"))
        if schema.num_graphs is not None:
            items.append(f"num_graphs={schema.num_graphs}")
        constant = self._kind(name, Group("DataKind(", items))
        self._check(lambda: [f"        {constant}.check({literal(source)}, {source})"])
        for key, value in tensors.items():
            *owner, attribute = key.split("|")
            store = f"{source}[{', '.join(map(literal, owner))}]" if owner else source
            self._tensor(value, f"{store}.{attribute}", f"{name}_{identifier(key)}", lambda axis: "")


def _bound(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """Name, value and default of each argument of the call, in the order of the call.

    Raises:
        RewriteError: forward takes its arguments in a way that cannot be written down.
    """
    parameters = inspect.signature(model.forward).parameters
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(positional) or any(name not in parameters for name in kwargs):
        raise RewriteError("forward takes these arguments through *args or **kwargs; give it named parameters")
    bound = [(p.name, value) for p, value in zip(positional, args, strict=False)] + list(kwargs.items())
    return [
        (name, value, f" = {literal(value)}" if _has_default(parameters[name], value) else "") for name, value in bound
    ]


def _has_default(parameter: inspect.Parameter, value: Any) -> bool:
    return isinstance(value, _CONSTANTS) and type(parameter.default) is type(value) and parameter.default == value


def _annotation(value: Any) -> str:
    return "Tensor" if isinstance(value, Tensor) else "Any"


def _check_value(name: str, source: str, value: Any) -> list[str]:
    expected = literal(value) if isinstance(value, _CONSTANTS) else str(Group("[", [literal(x) for x in value], "]"))
    return statement("", Group("check_value(", [literal(name), source, expected]), 8)


def _unpack(names: list[str], value: str, used: set[str]) -> list[str]:
    names = [name if name in used else "_" for name in names]
    if not used:
        return []
    left = f"({names[0]},)" if len(names) == 1 else ", ".join(names)
    flat = f"        {left} = {value}"
    if len(flat) <= WIDTH:
        return [flat]
    return ["        (", *(f"            {name}," for name in names), f"        ) = {value}"]


def column_source(graph: str, schema: Any, name: str) -> str:
    """Source of a column of a DGL graph, given as ``n.0.feat`` or ``e.0.weight``."""
    kind, number, column = name.split(".", 2)
    if kind == "e":
        view, key = "edges", ", ".join(map(literal, schema.etypes[int(number)]))
    else:
        view, key = "nodes", literal(schema.ntypes[int(number)])
        if schema.fields["_is_unibipartite"]:  # both ends of a block may have one name
            view = "srcnodes" if int(number) in schema.fields["_srctypes_invmap"].values() else "dstnodes"
    return f"{graph}.{view}[{key}].data[{literal(column)}]"


def _tuple(values: Any) -> Group:
    return tuple_of([_tuple(v) if isinstance(v, tuple) else literal(v) for v in values])
