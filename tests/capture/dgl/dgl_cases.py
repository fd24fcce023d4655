"""Configurations of every dgl.nn.pytorch convolution that can run on a current torch, with inputs of any size.

DenseChebConv calls a function that torch has removed; the CuGraph convolutions need a GPU library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dgl
import dgl.nn.pytorch as dnn
import pytest
import torch
from torch import Tensor, nn

D = 6  # width of node and edge features


@dataclass(frozen=True)
class Size:
    """Size of a random graph; ``seed`` makes its content."""

    nodes: int
    edges: int
    seed: int


SIZES = (Size(20, 70, 1), Size(33, 120, 2), Size(12, 31, 3))


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        conv: class name, the row of the coverage table.
        variant: what is special about it.
        build: makes the module.
        inputs: makes the positional arguments for a size.
        kwargs: makes the keyword arguments.
        islands: number of eager islands that are expected.
    """

    conv: str
    variant: str
    build: Callable[[], nn.Module]
    inputs: Callable[[Size], tuple[Any, ...]]
    kwargs: Callable[[Size], dict[str, Any]] = field(default=lambda size: {})
    islands: int = 0

    @property
    def name(self) -> str:
        return f"{self.conv}({self.variant})" if self.variant else self.conv


CASES: list[Case] = []


def case(conv: str, variant: str, build: Callable[[], nn.Module], inputs: Any, **options: Any) -> None:
    CASES.append(Case(conv, variant, build, inputs, **options))


def modes(case: Case) -> list[bool]:
    """Training first; evaluation too if the module has a part that tells them apart."""
    parts = case.build().modules()
    differ = any(isinstance(m, nn.BatchNorm1d) or (isinstance(m, nn.Dropout) and m.p > 0) for m in parts)
    return [True, False] if differ else [True]


# ---- graphs


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ends(num_src: int, num_dst: int, num_edges: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random edges in random order, at least one into each destination."""
    rng = generator(seed)
    src = torch.randint(num_src, (num_edges,), generator=rng)
    dst = torch.cat([torch.arange(num_dst), torch.randint(num_dst, (num_edges - num_dst,), generator=rng)])
    return src, dst[torch.randperm(num_edges, generator=rng)]


def graph(size: Size, idtype: torch.dtype = torch.int64) -> dgl.DGLGraph:
    return dgl.graph(ends(size.nodes, size.nodes, size.edges, size.seed), num_nodes=size.nodes, idtype=idtype)


def looped(size: Size) -> dgl.DGLGraph:
    return dgl.add_self_loop(dgl.remove_self_loop(graph(size)))


def ringed(size: Size) -> dgl.DGLGraph:
    """A graph in which every node has edges from itself and from the two nodes before it."""
    g, src = looped(size), torch.arange(size.nodes).repeat(2)
    return dgl.add_edges(g, src, (src + torch.tensor([1, 2]).repeat_interleave(size.nodes)) % size.nodes)


def sparse_graph(size: Size) -> dgl.DGLGraph:
    """A graph in which nodes have no edges at all, and others no in-edges or no out-edges."""
    src, dst = ends(size.nodes - 6, size.nodes - 6, size.edges, size.seed)
    return dgl.graph((src + 3, torch.where(dst < 4, dst + 2, dst)), num_nodes=size.nodes)


def bipartite(size: Size) -> dgl.DGLGraph:
    edges = ends(size.nodes, size.nodes // 2, size.edges, size.seed)
    return dgl.heterograph({("user", "rates", "item"): edges}, {"user": size.nodes, "item": size.nodes // 2})


def block(size: Size) -> dgl.DGLGraph:
    seeds = torch.arange(size.nodes // 2)
    return dgl.to_block(dgl.in_subgraph(looped(size), seeds), seeds)


def hetero(size: Size) -> dgl.DGLGraph:
    n, m, e, s = size.nodes, size.nodes + 5, size.edges + 5, size.seed
    relations = {
        ("user", "follows", "user"): ends(n, n, e, s),
        ("user", "buys", "item"): ends(n, m, e, s + 10),
        ("item", "sold", "user"): ends(m, n, e, s + 20),
    }
    return dgl.heterograph(relations, {"user": n, "item": m})


# ---- features


def normal(rows: int, *shape: int, seed: int) -> Tensor:
    return torch.randn(rows, *shape, generator=generator(seed), requires_grad=True)


def node(g: dgl.DGLGraph, size: Size, width: int = D, salt: int = 0) -> Tensor:
    return normal(g.num_src_nodes(), width, seed=100 * size.seed + salt)


def edge(g: dgl.DGLGraph, size: Size, *shape: int, salt: int = 50) -> Tensor:
    return normal(g.num_edges(), *(shape or (D,)), seed=100 * size.seed + salt)


def weight(g: dgl.DGLGraph, size: Size) -> Tensor:
    """Positive scalar edge weights."""
    return edge(g, size, 1, salt=60).detach()[:, 0].abs().add(0.1).requires_grad_()


def kinds(count: int, num_kinds: int) -> Tensor:
    return torch.arange(count) % num_kinds


def x(make: Callable[[Size], dgl.DGLGraph] = looped) -> Callable[[Size], tuple[Any, ...]]:
    """Graph and node features."""

    def inputs(size: Size) -> tuple[Any, ...]:
        g = make(size)
        return g, node(g, size)

    return inputs


def x_e(make: Callable[[Size], dgl.DGLGraph] = looped, *shape: int) -> Callable[[Size], tuple[Any, ...]]:
    """Graph, node features and edge features."""

    def inputs(size: Size) -> tuple[Any, ...]:
        g = make(size)
        return g, node(g, size), edge(g, size, *shape)

    return inputs


def pair(make: Callable[[Size], dgl.DGLGraph] = bipartite) -> Callable[[Size], tuple[Any, ...]]:
    """Bipartite graph and a pair of source and destination features."""

    def inputs(size: Size) -> tuple[Any, ...]:
        g = make(size)
        return g, (node(g, size), normal(g.num_dst_nodes(), D, seed=size.seed + 7))

    return inputs


def pair_e(size: Size) -> tuple[Any, ...]:
    g, features = pair()(size)
    return g, features, edge(g, size)


def with_weight(make: Callable[[Size], dgl.DGLGraph] = looped) -> dict[str, Any]:
    return {"kwargs": lambda size: {"edge_weight": weight(make(size), size)}}


def typed(num_ntypes: int = 3, num_etypes: int = 4, presorted: bool = False) -> Callable[[Size], tuple[Any, ...]]:
    """Homogeneous graph with a type a node and a type an edge."""

    def inputs(size: Size) -> tuple[Any, ...]:
        g = looped(size)
        n, e = g.num_nodes(), g.num_edges()
        if presorted:
            return g, node(g, size), torch.arange(n) * num_ntypes // n, torch.arange(e) * num_etypes // e
        return g, node(g, size), kinds(n, num_ntypes), kinds(e, num_etypes)

    return inputs


def etyped(size: Size, num_etypes: int = 4) -> tuple[Any, ...]:
    g = looped(size)
    return g, node(g, size), kinds(g.num_edges(), num_etypes)


def dense(size: Size) -> tuple[Any, ...]:
    g = looped(size)
    src, dst = g.edges()
    adjacency = torch.zeros(size.nodes, size.nodes).index_put((dst, src), torch.ones(()))
    return adjacency, node(g, size)


def relu(v: Tensor) -> Tensor:
    return torch.relu(v)


# ---- the table

case("AGNNConv", "", lambda: dnn.AGNNConv(), x())
case("AGNNConv", "fixed beta, pair", lambda: dnn.AGNNConv(0.7, learn_beta=False), pair())
case("APPNPConv", "", lambda: dnn.APPNPConv(3, 0.1), x())
case("APPNPConv", "edge weight", lambda: dnn.APPNPConv(2, 0.1), x(), **with_weight())
case("APPNPConv", "edge dropout", lambda: dnn.APPNPConv(2, 0.1, 0.3), x())
case(
    "AtomicConv",
    "",
    lambda: dnn.AtomicConv(torch.ones(2) * 2, torch.ones(2), torch.ones(2), torch.tensor([6.0, 20.0])),
    lambda s: (
        looped(s),
        torch.randint(2, (s.nodes, 1), generator=generator(s.seed)) * 14.0 + 6,
        edge(looped(s), s, 1).detach().abs(),
    ),
)
case("CFConv", "", lambda: dnn.CFConv(D, D, 8, 5), x_e())
case("ChebConv", "lambda", lambda: dnn.ChebConv(D, 5, 3), x(), kwargs=lambda s: {"lambda_max": torch.tensor([1.7])})
case("ChebConv", "lambda as a list", lambda: Inside(dnn.ChebConv(D, 5, 2)), x(), islands=1)
case(
    "DGNConv",
    "",
    lambda: dnn.DGNConv(
        D,
        6,
        ["dir1-av", "dir1-dx", "sum", "max"],
        ["identity", "amplification", "attenuation"],
        2.5,
        dropout=0.3,
    ),
    lambda s: (looped(s), node(looped(s), s)),
    kwargs=lambda s: {"eig_vec": node(looped(s), s, 3, salt=3)},
)
case("DenseGraphConv", "", lambda: dnn.DenseGraphConv(D, 5), dense)
case("DenseSAGEConv", "", lambda: dnn.DenseSAGEConv(D, 5), dense)
case("DotGatConv", "", lambda: dnn.DotGatConv(D, 5, 2), x())
case("DotGatConv", "pair", lambda: dnn.DotGatConv((D, D), 5, 2), pair())
case("EGATConv", "", lambda: dnn.EGATConv(D, D, 5, 4, 2), x_e())
case(
    "EGNNConv",
    "",
    lambda: dnn.EGNNConv(D, 8, 5, D),
    lambda s: (looped(s), node(looped(s), s), node(looped(s), s, 3, 9), edge(looped(s), s)),
)
case("EdgeConv", "", lambda: dnn.EdgeConv(D, 5), x())
case("EdgeConv", "batch norm", lambda: dnn.EdgeConv(D, 5, batch_norm=True), x())
case("EdgeGATConv", "", lambda: dnn.EdgeGATConv(D, D, 5, 2), x_e())
case("EdgeGATConv", "residual, dropout", lambda: dnn.EdgeGATConv(D, D, 5, 2, 0.2, 0.3, residual=True), x_e())
case("GATConv", "", lambda: dnn.GATConv(D, 5, 2), x())
case("GATConv", "residual, activation", lambda: dnn.GATConv(D, 5, 2, residual=True, activation=relu), x())
case("GATConv", "dropout", lambda: dnn.GATConv(D, 5, 2, 0.2, 0.4), x())
case("GATConv", "edge weight", lambda: dnn.GATConv(D, 5, 2), x(), **with_weight())
case("GATConv", "attention", lambda: dnn.GATConv(D, 5, 1), x(), kwargs=lambda s: {"get_attention": True})
case("GATConv", "pair", lambda: dnn.GATConv((D, D), 5, 2, residual=True), pair())
case("GATConv", "block", lambda: dnn.GATConv(D, D, 1, residual=True, bias=False), x(block))
case("GATConv", "int32", lambda: dnn.GATConv(D, 5, 2), x(lambda s: looped(s).int()))
case("GATConv", "isolated nodes", lambda: dnn.GATConv(D, 5, 2, allow_zero_in_degree=True), x(sparse_graph))
case("GATv2Conv", "", lambda: dnn.GATv2Conv(D, 5, 2), x())
case("GATv2Conv", "residual, shared", lambda: dnn.GATv2Conv(D, 5, 2, residual=True, share_weights=True), x())
case("GATv2Conv", "pair, dropout", lambda: dnn.GATv2Conv((D, D), 5, 2, 0.2, 0.3), pair())
case("GCN2Conv", "", lambda: dnn.GCN2Conv(D, 1), lambda s: (looped(s), node(looped(s), s), node(looped(s), s, D, 1)))
case(
    "GCN2Conv",
    "two weights",
    lambda: dnn.GCN2Conv(D, 2, project_initial_features=False, activation=relu),
    lambda s: (looped(s), node(looped(s), s), node(looped(s), s, D, 1)),
)
case("GINConv", "sum, learn eps", lambda: dnn.GINConv(nn.Linear(D, 5), "sum", learn_eps=True), x())
case("GINConv", "max", lambda: dnn.GINConv(nn.Linear(D, 5), "max"), x(sparse_graph))
case("GINConv", "mean, edge weight", lambda: dnn.GINConv(nn.Linear(D, 5), "mean"), x(), **with_weight())
case("GINConv", "pair", lambda: dnn.GINConv(None, "sum", activation=relu), pair())
case("GINEConv", "", lambda: dnn.GINEConv(nn.Linear(D, 5)), x_e())
case("GMMConv", "mean", lambda: dnn.GMMConv(D, 5, 3, 4, "mean"), x_e(looped, 3))
case("GMMConv", "max, residual", lambda: dnn.GMMConv(D, 5, 3, 4, "max", residual=True), x_e(looped, 3))
case("GatedGCNConv", "", lambda: dnn.GatedGCNConv(D, D, 6, dropout=0.2), x_e())
case("GatedGraphConv", "1 type", lambda: dnn.GatedGraphConv(D, 8, 2, 1), x())
case("GatedGraphConv", "3 types", lambda: dnn.GatedGraphConv(D, 8, 2, 3), lambda s: etyped(s, 3))
case("GraphConv", "both", lambda: dnn.GraphConv(D, 5), x())
case("GraphConv", "wide, activation", lambda: dnn.GraphConv(D, 9, activation=relu), x())
case("GraphConv", "right", lambda: dnn.GraphConv(D, 5, norm="right"), x())
case("GraphConv", "left", lambda: dnn.GraphConv(D, 5, norm="left", bias=False), x())
case("GraphConv", "none", lambda: dnn.GraphConv(D, 5, norm="none", allow_zero_in_degree=True), x(sparse_graph))
case("GraphConv", "edge weight", lambda: dnn.GraphConv(D, 5), x(), **with_weight())
case(
    "GraphConv",
    "external weight",
    lambda: dnn.GraphConv(D, 5, weight=False),
    x(),
    kwargs=lambda s: {"weight": normal(D, 5, seed=s.seed)},
)
case("GraphConv", "pair", lambda: dnn.GraphConv(D, 5), pair())
case("GraphConv", "block", lambda: dnn.GraphConv(D, 5), x(block))
case("GraphConv", "int32", lambda: dnn.GraphConv(D, 5), x(lambda s: looped(s).int()))
case("EdgeWeightNorm", "both", lambda: dnn.EdgeWeightNorm("both"), lambda s: (looped(s), weight(looped(s), s)))
case("EdgeWeightNorm", "right, block", lambda: dnn.EdgeWeightNorm("right"), lambda s: (block(s), weight(block(s), s)))
case("GroupRevRes", "", lambda: GroupResidual(), x(), islands=1)
case("HGTConv", "", lambda: dnn.HGTConv(D, 4, 2, 3, 4, dropout=0.2), typed())
case("HGTConv", "norm", lambda: dnn.HGTConv(D, 3, 2, 3, 4, dropout=0.0, use_norm=True), typed())
case(
    "HGTConv",
    "presorted",
    lambda: dnn.HGTConv(D, 4, 2, 3, 4, dropout=0.0),
    typed(presorted=True),
    kwargs=lambda s: {"presorted": True},
)
case("NNConv", "mean", lambda: dnn.NNConv(D, 5, nn.Linear(D, D * 5), "mean"), x_e())
case("NNConv", "max, residual", lambda: dnn.NNConv(D, 5, nn.Linear(D, D * 5), "max", residual=True), x_e())
case("NNConv", "sum, pair", lambda: dnn.NNConv((D, D), 5, nn.Linear(D, D * 5), "sum"), pair_e)
case(
    "PNAConv",
    "",
    lambda: dnn.PNAConv(
        D,
        6,
        ["mean", "max", "min", "sum", "std", "var", "moment3"],
        ["identity", "amplification", "attenuation"],
        2.5,
        dropout=0.2,
    ),
    x(ringed),  # of one or two messages a moment is 0, and the gradient of its root nothing but rounding
)
case(
    "PNAConv",
    "edge features, towers",
    lambda: dnn.PNAConv(D, 6, ["mean", "max"], ["identity"], 2.5, num_towers=2, edge_feat_size=D),
    x_e(),
)
case("RelGraphConv", "plain", lambda: dnn.RelGraphConv(D, 5, 4), etyped)
case("RelGraphConv", "basis, dropout", lambda: dnn.RelGraphConv(D, 5, 4, "basis", 2, dropout=0.3), etyped)
case("RelGraphConv", "basis, wide", lambda: dnn.RelGraphConv(D, 12, 4, "basis", 2, self_loop=False), etyped)
case("RelGraphConv", "bdd, layer norm", lambda: dnn.RelGraphConv(D, 4, 4, "bdd", 2, layer_norm=True), etyped)
case(
    "RelGraphConv",
    "norm, presorted",
    lambda: dnn.RelGraphConv(D, 5, 4, "basis", 3),
    lambda s: (looped(s), node(looped(s), s), torch.arange(looped(s).num_edges()) * 4 // looped(s).num_edges()),
    kwargs=lambda s: {"norm": weight(looped(s), s).unsqueeze(-1), "presorted": True},
)
for aggregator in ("mean", "gcn", "pool"):
    case("SAGEConv", aggregator, lambda a=aggregator: dnn.SAGEConv(D, 5, a), x())
    case("SAGEConv", f"{aggregator}, block", lambda a=aggregator: dnn.SAGEConv(D, 9, a, 0.3), x(block))
    case("SAGEConv", f"{aggregator}, pair", lambda a=aggregator: dnn.SAGEConv((D, D), 5, a), pair())
case("SAGEConv", "mean, edge weight", lambda: dnn.SAGEConv(D, 5, "mean"), x(sparse_graph), **with_weight(sparse_graph))
case(
    "SAGEConv",
    "pool, norm",
    lambda: dnn.SAGEConv(D, 5, "pool", norm=nn.BatchNorm1d(5), activation=relu),
    x(sparse_graph),
)
case("SAGEConv", "lstm", lambda: dnn.SAGEConv(D, 5, "lstm"), x(sparse_graph), islands=1)
case("SGConv", "", lambda: dnn.SGConv(D, 5, 2), x())
case("SGConv", "norm, edge weight", lambda: dnn.SGConv(D, 5, 1, norm=nn.LayerNorm(D)), x(), **with_weight())
case("TAGConv", "", lambda: dnn.TAGConv(D, 5, 2), x())
case("TAGConv", "edge weight", lambda: dnn.TAGConv(D, 5, 2, activation=relu), x(), **with_weight())
case("TWIRLSConv", "", lambda: dnn.TWIRLSConv(D, 5, 8, 3), x())
case("TWIRLSConv", "attention", lambda: dnn.TWIRLSConv(D, 5, 8, 3, attention=True), x())
case("TWIRLSUnfoldingAndAttention", "", lambda: dnn.TWIRLSUnfoldingAndAttention(D, 1.0, 1.0, 4), x())


class Inside(nn.Module):
    """A model with one convolution, which may become an eager island."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, *args: Any) -> Any:
        return self.conv(*args)


class GroupResidual(nn.Module):
    """Two reversible groups of graph convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dnn.GroupRevRes(PlainConv(), groups=2)

    def forward(self, g: dgl.DGLGraph, h: Tensor) -> Tensor:
        return self.inner(g, h)


class PlainConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = dnn.GraphConv(D // 2, D // 2)

    def forward(self, g: dgl.DGLGraph, h: Tensor) -> Tensor:
        return self.conv(g, h)


MODES = [(c, training) for c in CASES for training in modes(c)]


def in_modes(is_slow: Callable[[Case, bool], bool]) -> pytest.MarkDecorator:
    """Run a test of each case in each of its modes, by night those that are slow."""
    return pytest.mark.parametrize(
        ("case", "training"),
        [
            pytest.param(
                *(c, training),
                id=f"{c.name}-{'train' if training else 'eval'}",
                marks=[pytest.mark.slow] if is_slow(c, training) else [],
            )
            for c, training in MODES
        ],
    )


in_every_mode = in_modes(lambda case, training: False)
