"""Small models on plain tensors and gqc's graph ops, their graphs, and the way from a model to its joint graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional as F

from gqc.joint import BUFFER, PARAMETER, TANGENT, JointGraph, build_joint

ops = torch.ops.gqc
Relation = list[Tensor]


def relation(sources: int, destinations: int, edges: int) -> Relation:
    """A random relation, see docs/architecture.md; every destination has an in-edge if there are enough edges."""
    src = torch.randint(sources, (edges,))
    dst = torch.cat([torch.arange(destinations), torch.randint(destinations, (edges,))])[:edges]
    return [*_compressed(dst, src, destinations), *_compressed(src, dst, sources), src, dst]


def _compressed(rows: Tensor, columns: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    eids = torch.argsort(rows, stable=True)
    indptr = torch.zeros(num_rows + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(rows, minlength=num_rows).cumsum(0)
    return indptr, columns[eids], eids


def reverse(g: Relation) -> Relation:
    return [*g[3:6], *g[:3], g[7], g[6]]


class GraphConv(nn.Module):
    """As in DGL: the product goes first where it makes the features narrower."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, out) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(out))
        self.narrows = out < width

    def forward(self, g: Relation, x: Tensor) -> Tensor:
        norm = (g[0][1:] - g[0][:-1]).float().clamp(min=1).rsqrt().unsqueeze(1)
        if self.narrows:
            x = ops.spmm(g, "copy_lhs", x @ self.weight, None)
        else:
            x = ops.spmm(g, "copy_lhs", x, None) @ self.weight
        return x * norm + self.bias


class GATConv(nn.Module):
    def __init__(self, width: int, out: int, heads: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, out * heads, bias=False)
        self.left = nn.Parameter(torch.randn(1, heads, out) / out**0.5)
        self.right = nn.Parameter(torch.randn(1, heads, out) / out**0.5)
        self.heads = heads

    def forward(self, g: Relation, x: Tensor) -> Tensor:
        h = self.fc(x).view(x.shape[0], self.heads, -1)
        left, right = ((h * a).sum(-1, keepdim=True) for a in (self.left, self.right))
        logits = F.leaky_relu(ops.sddmm(g, "add", left, right, "u", "v"), 0.2)
        return ops.spmm(g, "mul", h, ops.edge_softmax(g, logits)).flatten(1)


class DotGATConv(nn.Module):
    """Attention logits that are wide SDDMMs."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, out, bias=False)

    def forward(self, g: Relation, x: Tensor) -> Tensor:
        h = self.fc(x)
        return ops.spmm(g, "mul", h, ops.edge_softmax(g, ops.sddmm(g, "dot", h, h, "u", "v")))


class SAGEConv(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, out)
        self.neighbours = nn.Linear(width, out, bias=False)

    def forward(self, g: Relation, x: Tensor) -> Tensor:
        degree = (g[0][1:] - g[0][:-1]).float().clamp(min=1).unsqueeze(1)
        return self.own(x) + self.neighbours(ops.spmm(g, "copy_lhs", x, None) / degree)


class PoolConv(nn.Module):
    """GraphSAGE's max aggregation."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.pool = nn.Linear(width, width)
        self.fc = nn.Linear(width, out)

    def forward(self, g: Relation, x: Tensor) -> Tensor:
        return self.fc(ops.spmm_cmp(g, "copy_lhs", "max", F.relu(self.pool(x)), None)[0])


class RelGraphConv(nn.Module):
    """A weight for each of two relations, and one for the node itself."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(width, out) / width**0.5 for _ in range(2))
        self.loop = nn.Linear(width, out)

    def forward(self, g: Relation, x: Tensor) -> Tensor:
        relations = (g, reverse(g))
        messages = [ops.spmm(r, "copy_lhs", x @ w, None) for r, w in zip(relations, self.weights, strict=True)]
        return self.loop(x) + sum(messages)


class GatherScatterConv(nn.Module):
    """As in PyG: message passing by index_select and index_add."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, out)

    def forward(self, g: Relation, x: Tensor) -> Tensor:
        x = self.lin(x)
        return torch.zeros_like(x).index_add(0, g[7], x.index_select(0, g[6]))


class OnRelation(nn.Module):
    """A model whose arguments are flat, as those of a captured graph: the tensors of a relation, then features."""

    def forward(self, a0, a1, a2, a3, a4, a5, a6, a7, x):
        return self.run([a0, a1, a2, a3, a4, a5, a6, a7], x)

    def run(self, g: Relation, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        raise NotImplementedError


class TwoLayers(OnRelation):
    """Two convs with ReLU and dropout between, the way that users write it."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv1, conv2
        self.dropout = dropout

    def run(self, g: Relation, x: Tensor) -> Tensor:
        h = F.dropout(F.relu(self.conv1(g, x)), self.dropout, self.training)
        return self.conv2(g, h)


class MLP(OnRelation):
    """Ignores the graph; has buffers that training updates in place."""

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, out)

    def run(self, g: Relation, x: Tensor) -> Tensor:
        h = F.elu(self.norm(self.first(x)))
        return self.last(F.leaky_relu(self.second(h)))


WIDTH, HIDDEN, CLASSES = 16, 24, 5

MODELS = {
    "gcn": lambda: TwoLayers(GraphConv(WIDTH, HIDDEN), GraphConv(HIDDEN, CLASSES)),
    "gat": lambda: TwoLayers(GATConv(WIDTH, 8, 3), GATConv(HIDDEN, CLASSES, 1)),
    "dotgat": lambda: TwoLayers(DotGATConv(WIDTH, HIDDEN), DotGATConv(HIDDEN, CLASSES)),
    "sage": lambda: TwoLayers(SAGEConv(WIDTH, HIDDEN), SAGEConv(HIDDEN, CLASSES)),
    "pool": lambda: TwoLayers(PoolConv(WIDTH, HIDDEN), PoolConv(HIDDEN, CLASSES)),
    "rgcn": lambda: TwoLayers(RelGraphConv(WIDTH, HIDDEN), RelGraphConv(HIDDEN, CLASSES)),
    "pyg": lambda: TwoLayers(GatherScatterConv(WIDTH, HIDDEN), GatherScatterConv(HIDDEN, CLASSES)),
    "mlp": lambda: MLP(WIDTH, HIDDEN, CLASSES),
}


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True


@dataclass
class Case:
    """A model, and its joint graph for calls with a relation and node features.

    Attributes:
        model: parameters and buffers.
        joint: the joint graph, not yet rewritten.
    """

    model: OnRelation
    joint: JointGraph

    def primals(self, g: Relation, x: Tensor) -> list[Tensor]:
        """Values of the joint graph's parameters, buffers and inputs for a call, in placeholder order."""
        state = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        inputs = [*g, x]
        placeholders = [p for p in self.joint.placeholders if p.kind in (PARAMETER, BUFFER)]
        return [state[p.name] for p in placeholders] + inputs

    def tangents(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """A random gradient for every forward output that has one."""
        return [torch.randn_like(outputs[p.index]) for p in self.joint.placeholders if p.kind == TANGENT]


def graph_and_features(nodes: int = 40, edges: int = 150, width: int = WIDTH) -> tuple[Relation, Tensor]:
    return relation(nodes, nodes, edges), torch.randn(nodes, width)


def case(model: OnRelation, dtype: torch.dtype = torch.float32, input_needs_grad: bool = False) -> Case:
    """The joint graph of a model that takes a relation and node features, with symbolic numbers of both.

    The passes see what a capture gives them: a flat graph whose nodes say which call and module they come from.
    """
    graph = fx.GraphModule(model, _Tracer().trace(model))
    (output,) = graph.graph.find_nodes(op="output")
    if not isinstance(output.args[0], tuple):
        output.args = ((output.args[0],),)
    for number, node in enumerate(graph.graph.nodes):
        path, kind = list((node.meta.get("nn_module_stack") or {"": ("", type(model))}).values())[-1]
        node.meta["custom"] = {"gqc": {"id": number, "module": path, "type": kind.__name__}}
    g, x = graph_and_features(37, 149)  # drawn each time: a test's data should not depend on what was built before
    examples = [*g, x.to(dtype).requires_grad_(input_needs_grad)]
    key = _key(graph, dtype, input_needs_grad)
    if key is None:
        return Case(model, _build(graph, examples)[0])
    if key not in _built or _learned(_built[key][1]) != _built[key][2]:
        joint, shapes = _build(graph, examples)
        _built[key] = joint, shapes, _learned(shapes)
    return Case(model, _copied(_built[key][0]))


_built: dict[object, tuple[JointGraph, ShapeEnv, object]] = {}
"""Joint graphs by what they depend on, since one takes longer to build than all passes over it."""


def _build(graph: fx.GraphModule, examples: list[Tensor]) -> tuple[JointGraph, ShapeEnv]:
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    return build_joint(graph, [_fake(mode, t) for t in examples]), shapes


def _key(graph: fx.GraphModule, dtype: torch.dtype, input_needs_grad: bool) -> object:
    """Two calls with the same key have the same joint graph; None if it may hold a constant that the key does not."""
    state = dict(graph.named_parameters(remove_duplicate=False)) | dict(graph.named_buffers(remove_duplicate=False))
    if any(node.op == "get_attr" and node.target not in state for node in graph.graph.nodes):
        return None
    nodes = tuple((n.op, n.target, str((n.args, n.kwargs, n.meta["custom"]))) for n in graph.graph.nodes)
    called = [graph.get_submodule(node.target) for node in graph.graph.find_nodes(op="call_module")]
    modules = tuple((repr(module), module.training) for module in called)
    tied = {id(value): name for name, value in state.items()}
    values = tuple(
        (name, tied[id(v)], type(v), v.shape, v.stride(), v.dtype, v.requires_grad) for name, v in state.items()
    )
    modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return nodes, modules, values, dtype, input_needs_grad, modes, torch.get_default_dtype()


def _learned(shapes: ShapeEnv) -> object:
    """What passes may have told about sizes, which the next test should not know."""
    return len(shapes.guards), len(shapes.replacements), str(shapes.var_to_range)


def _copied(joint: JointGraph) -> JointGraph:
    """The same joint graph for passes to rewrite."""
    graph, copies = fx.Graph(), {}
    for node in joint.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta = {key: dict(v) if isinstance(v, dict) else v for key, v in node.meta.items()}
    return replace(
        joint,
        module=fx.GraphModule(joint.module, graph),
        placeholders=[replace(p, node=copies[p.node]) for p in joint.placeholders],
        gradient_of=[copies[node] for node in joint.gradient_of],
    )


def _fake(mode: FakeTensorMode, value: Tensor) -> Tensor:
    sizes = [DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (value.dim() - 1)
    return mode.from_tensor(value, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
