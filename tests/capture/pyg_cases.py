"""PyG convs, PyG models and plain PyTorch modules with dense inputs, and the calls on which they are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import Linear
from torch.nn import functional as F
from torch_geometric.nn import models

IN, OUT, HIDDEN, EDGE = 16, 32, 32, 8
METADATA = (["a", "b"], [("a", "to", "b"), ("b", "to", "a"), ("a", "self", "a")])
DEGREES = torch.tensor([1, 4, 10, 20, 30, 20, 10, 5, 2])


class Sample:
    """Random tensors of a graph with ``nodes`` nodes and ``edges`` edges."""

    def __init__(self, nodes: int, edges: int, seed: int) -> None:
        self.nodes, self.edges = nodes, edges
        self.generator = torch.Generator().manual_seed(seed)

    def features(self, *shape: int) -> Tensor:
        return torch.randn(*(shape or (self.nodes, IN)), generator=self.generator)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator)

    def edge_index(self, sources: int | None = None, targets: int | None = None) -> Tensor:
        ends = [self.integers(n or self.nodes, self.edges) for n in (sources, targets)]
        return torch.stack(ends)


Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A model and its calls; ``eager`` says why it cannot be captured, ``None`` if it can."""

    build: Callable[[], nn.Module]
    call: Callable[[Sample], Call]
    eager: str | None = None


def x_edges(s: Sample) -> Call:
    return (s.features(), s.edge_index()), {}


def x_sorted_edges(s: Sample) -> Call:
    edge_index = s.edge_index()
    return (s.features(), edge_index[:, edge_index[1].argsort()]), {}


def x_edges_weights(s: Sample) -> Call:
    return (s.features(), s.edge_index(), s.uniform(s.edges)), {}


def x_edges_attributes(s: Sample) -> Call:
    return (s.features(), s.edge_index()), {"edge_attr": s.features(s.edges, EDGE)}


def x_edges_types(s: Sample) -> Call:
    return (s.features(), s.edge_index(), s.integers(4, s.edges)), {}


def x_positions_edges(s: Sample) -> Call:
    return (s.features(), s.features(s.nodes, 3), s.edge_index()), {}


def x_x0_edges(s: Sample) -> Call:
    return (s.features(), s.features(), s.edge_index()), {}


def x_edges_pseudo(s: Sample) -> Call:
    return (s.features(), s.edge_index(), s.uniform(s.edges, 3)), {}


def x_two_edges(s: Sample) -> Call:
    return (s.features(), s.edge_index(), s.edge_index()), {}


def x_edges_zero_batch(s: Sample) -> Call:
    return (s.features(), s.edge_index(), torch.zeros(s.nodes, dtype=torch.long)), {}


def point_pairs(s: Sample) -> Call:
    normals = F.normalize(s.uniform(s.nodes, 3), dim=-1)
    return (s.features(), s.features(s.nodes, 3), normals, s.edge_index()), {}


def hyperedges(s: Sample) -> Call:
    incidence = torch.stack([s.integers(s.nodes, s.edges), s.integers(50, s.edges)])
    return (s.features(), incidence), {"num_edges": 50}


def two_node_types(s: Sample) -> Call:
    half = s.nodes // 2
    features = {"a": s.features(), "b": s.features(half, IN)}
    ends = {"a": s.nodes, "b": half}
    return (features, {r: s.edge_index(ends[r[0]], ends[r[2]]) for r in METADATA[1]}), {}


def typed_nodes_and_edges(s: Sample) -> Call:
    types = s.integers(3, s.nodes), s.integers(4, s.edges)
    return (s.features(), s.edge_index(), *types, s.features(s.edges, EDGE)), {}


def mesh(s: Sample) -> Call:
    neighbours = s.integers(s.nodes, s.nodes, 4).reshape(-1)
    return (s.features(), torch.stack([neighbours, torch.arange(s.nodes).repeat_interleave(4)])), {}


def sorted_batch(s: Sample) -> Call:
    batch = torch.cat([torch.arange(4), s.integers(4, s.nodes - 4)]).sort().values
    return (s.features(), s.edge_index(), s.features(s.edges, EDGE), batch), {}


def mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(Linear(width, out), nn.ReLU(), Linear(out, out))


def pna(**options: Any) -> dict[str, Any]:
    return {"aggregators": ["mean", "min", "max", "std"], **options}


def rgat() -> nn.Module:
    conv = pyg.RGATConv(IN, OUT, 4)
    nn.init.constant_(conv.l2, 1 / OUT)  # PyG 2.8 leaves it uninitialised: its reset drops the filled tensor
    return conv


def hetero_sage() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = pyg.SAGEConv((IN, IN), HIDDEN)
            self.conv2 = pyg.SAGEConv((HIDDEN, HIDDEN), OUT)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    return pyg.to_hetero(Net(), METADATA)


class TwoHGT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.HGTConv(IN, HIDDEN, METADATA, 2)
        self.conv2 = pyg.HGTConv(HIDDEN, OUT, METADATA, 2)

    def forward(self, x: Any, edges: Any) -> Any:
        return self.conv2(self.conv1(x, edges), edges)


CONVS: dict[str, Case] = {
    "SimpleConv": Case(lambda: pyg.SimpleConv(aggr="mean"), x_edges),
    "GCNConv": Case(lambda: pyg.GCNConv(IN, OUT), x_edges),
    "GCNConv[edge_weight]": Case(lambda: pyg.GCNConv(IN, OUT), x_edges_weights),
    "GCNConv[normalize=False]": Case(lambda: pyg.GCNConv(IN, OUT, normalize=False), x_edges_weights),
    "ChebConv": Case(lambda: pyg.ChebConv(IN, OUT, K=3), x_edges),
    "SAGEConv[mean]": Case(lambda: pyg.SAGEConv(IN, OUT), x_edges),
    "SAGEConv[lstm]": Case(lambda: pyg.SAGEConv(IN, OUT, aggr="lstm"), x_sorted_edges),
    "SAGEConv[max]": Case(lambda: pyg.SAGEConv(IN, OUT, aggr="max"), x_edges),
    "GraphConv": Case(lambda: pyg.GraphConv(IN, OUT), x_edges_weights),
    "GatedGraphConv": Case(lambda: pyg.GatedGraphConv(OUT, 3), x_edges),
    "ResGatedGraphConv": Case(lambda: pyg.ResGatedGraphConv(IN, OUT), x_edges),
    "GATConv": Case(lambda: pyg.GATConv(IN, 8, heads=4), x_edges),
    "GATConv[edge_dim]": Case(lambda: pyg.GATConv(IN, 8, heads=4, edge_dim=EDGE), x_edges_attributes),
    "GATv2Conv": Case(lambda: pyg.GATv2Conv(IN, 8, heads=4), x_edges),
    "TransformerConv": Case(lambda: pyg.TransformerConv(IN, 8, heads=4), x_edges),
    "AGNNConv": Case(pyg.AGNNConv, x_edges),
    "TAGConv": Case(lambda: pyg.TAGConv(IN, OUT), x_edges),
    "GINConv": Case(lambda: pyg.GINConv(mlp(IN, OUT)), x_edges),
    "GINEConv": Case(lambda: pyg.GINEConv(mlp(IN, OUT), edge_dim=EDGE), x_edges_attributes),
    "ARMAConv": Case(lambda: pyg.ARMAConv(IN, OUT, num_stacks=2, num_layers=2), x_edges),
    "SGConv": Case(lambda: pyg.SGConv(IN, OUT, K=2), x_edges),
    "SSGConv": Case(lambda: pyg.SSGConv(IN, OUT, alpha=0.1, K=2), x_edges),
    "APPNP": Case(lambda: pyg.APPNP(K=3, alpha=0.1), x_edges),
    "MFConv": Case(lambda: pyg.MFConv(IN, OUT), x_edges),
    "RGCNConv": Case(lambda: pyg.RGCNConv(IN, OUT, 4), x_edges_types),
    "RGCNConv[bases]": Case(lambda: pyg.RGCNConv(IN, OUT, 4, num_bases=2), x_edges_types),
    "FastRGCNConv": Case(lambda: pyg.FastRGCNConv(IN, OUT, 4), x_edges_types),
    "RGATConv": Case(rgat, x_edges_types),
    "SignedConv": Case(lambda: pyg.SignedConv(IN, OUT, first_aggr=True), x_two_edges),
    "DNAConv": Case(lambda: pyg.DNAConv(32, heads=4), lambda s: ((s.features(s.nodes, 3, 32), s.edge_index()), {})),
    "PointNetConv": Case(lambda: pyg.PointNetConv(mlp(IN + 3, OUT)), x_positions_edges),
    "GMMConv": Case(lambda: pyg.GMMConv(IN, OUT, dim=3, kernel_size=5), x_edges_pseudo),
    "NNConv": Case(lambda: pyg.NNConv(IN, OUT, mlp(EDGE, IN * OUT)), x_edges_attributes),
    "CGConv": Case(lambda: pyg.CGConv(IN, dim=EDGE), x_edges_attributes),
    "EdgeConv": Case(lambda: pyg.EdgeConv(mlp(2 * IN, OUT)), x_edges),
    "PPFConv": Case(lambda: pyg.PPFConv(mlp(IN + 4, OUT)), point_pairs),
    "FeaStConv": Case(lambda: pyg.FeaStConv(IN, OUT, heads=2), x_edges),
    "PointTransformerConv": Case(lambda: pyg.PointTransformerConv(IN, OUT), x_positions_edges),
    "HypergraphConv": Case(lambda: pyg.HypergraphConv(IN, OUT), hyperedges),
    "LEConv": Case(lambda: pyg.LEConv(IN, OUT), x_edges),
    "PNAConv": Case(
        lambda: pyg.PNAConv(IN, OUT, scalers=["identity", "amplification", "attenuation"], deg=DEGREES, **pna()),
        x_edges,
    ),
    "ClusterGCNConv": Case(lambda: pyg.ClusterGCNConv(IN, OUT), x_edges),
    "GENConv": Case(lambda: pyg.GENConv(IN, OUT), x_edges),
    "GCN2Conv": Case(lambda: pyg.GCN2Conv(IN, alpha=0.2), x_x0_edges),
    "WLConv": Case(
        pyg.WLConv, lambda s: ((s.integers(4, s.nodes), s.edge_index()), {}), eager="hashes lists of neighbours"
    ),
    "WLConvContinuous": Case(pyg.WLConvContinuous, x_edges_weights),
    "FiLMConv": Case(lambda: pyg.FiLMConv(IN, OUT), x_edges),
    "SuperGATConv": Case(lambda: pyg.SuperGATConv(IN, 8, heads=4), x_edges, eager="samples negative edges with NumPy"),
    "FAConv": Case(lambda: pyg.FAConv(IN, eps=0.1), x_x0_edges),
    "EGConv": Case(lambda: pyg.EGConv(IN, OUT, aggregators=["sum", "mean", "max"]), x_edges),
    "PDNConv": Case(lambda: pyg.PDNConv(IN, OUT, edge_dim=EDGE, hidden_channels=16), x_edges_attributes),
    "GeneralConv": Case(lambda: pyg.GeneralConv(IN, OUT, in_edge_channels=EDGE, attention=True), x_edges_attributes),
    "HGTConv": Case(lambda: pyg.HGTConv(IN, OUT, METADATA, heads=2), two_node_types),
    "HEATConv": Case(lambda: pyg.HEATConv(IN, 8, 3, 4, 8, EDGE, 8, heads=2), typed_nodes_and_edges),
    "HeteroConv[SAGEConv]": Case(
        lambda: pyg.HeteroConv({r: pyg.SAGEConv((IN, IN), OUT) for r in METADATA[1]}, aggr="sum"), two_node_types
    ),
    "HANConv": Case(lambda: pyg.HANConv(IN, OUT, METADATA, heads=2), two_node_types),
    "LGConv": Case(pyg.LGConv, x_edges),
    "PointGNNConv": Case(lambda: pyg.PointGNNConv(mlp(IN, 3), mlp(IN + 3, OUT), mlp(OUT, IN)), x_positions_edges),
    "GPSConv": Case(lambda: pyg.GPSConv(IN, pyg.GINConv(mlp(IN, IN)), heads=2), x_edges),
    "AntiSymmetricConv": Case(lambda: pyg.AntiSymmetricConv(IN), x_edges),
    "DirGNNConv": Case(lambda: pyg.DirGNNConv(pyg.SAGEConv(IN, OUT)), x_edges),
    "MixHopConv": Case(lambda: pyg.MixHopConv(IN, OUT, powers=[0, 1, 2]), x_edges),
    "MeshCNNConv": Case(lambda: pyg.MeshCNNConv(IN, OUT), mesh),
}

MODELS: dict[str, Case] = {
    "GCN": Case(lambda: models.GCN(IN, HIDDEN, 2, OUT, dropout=0.0), x_edges),
    "GCN[batch norm, jumping knowledge]": Case(
        lambda: models.GCN(IN, HIDDEN, 2, OUT, norm="batch_norm", jk="cat"), x_edges
    ),
    "GraphSAGE": Case(lambda: models.GraphSAGE(IN, HIDDEN, 2, OUT), x_edges),
    "GraphSAGE[max]": Case(lambda: models.GraphSAGE(IN, HIDDEN, 2, OUT, aggr="max"), x_edges),
    "GIN": Case(lambda: models.GIN(IN, HIDDEN, 2, OUT), x_edges),
    "GAT": Case(lambda: models.GAT(IN, HIDDEN, 2, OUT, heads=4), x_edges),
    "GAT[v2]": Case(lambda: models.GAT(IN, HIDDEN, 2, OUT, heads=4, v2=True), x_edges),
    "PNA": Case(
        lambda: models.PNA(IN, HIDDEN, 2, OUT, scalers=["identity", "amplification"], deg=DEGREES, **pna()), x_edges
    ),
    "EdgeCNN": Case(lambda: models.EdgeCNN(IN, HIDDEN, 2, OUT), x_edges),
    "DeepGCNLayer": Case(
        lambda: models.DeepGCNLayer(pyg.GENConv(IN, IN), pyg.LayerNorm(IN), nn.ReLU(), block="res+"), x_edges
    ),
    "LightGCN": Case(lambda: models.LightGCN(100, 32, 2), lambda s: ((s.edge_index(100, 100),), {})),
    "LINKX": Case(
        lambda: models.LINKX(100, IN, HIDDEN, OUT, 2), lambda s: ((s.features(100, IN), s.edge_index(100, 100)), {})
    ),
    "AttentiveFP": Case(
        lambda: models.AttentiveFP(IN, HIDDEN, OUT, edge_dim=EDGE, num_layers=2, num_timesteps=2), sorted_batch
    ),
    "GraphUNet": Case(lambda: models.GraphUNet(IN, HIDDEN, OUT, depth=2), x_edges, eager="makes a sparse tensor"),
    "SignedGCN": Case(lambda: models.SignedGCN(IN, HIDDEN, 2), x_two_edges),
    "PMLP": Case(lambda: models.PMLP(IN, HIDDEN, OUT, 2), x_edges),
    "NeuralFingerprint": Case(lambda: models.NeuralFingerprint(IN, HIDDEN, OUT, 2), x_edges),
    "RECT_L": Case(lambda: models.RECT_L(IN, HIDDEN), x_edges),
    "SGFormer": Case(lambda: models.SGFormer(IN, HIDDEN, OUT), x_edges_zero_batch),
    "Polynormer": Case(lambda: models.Polynormer(IN, HIDDEN, OUT), x_edges_zero_batch),
    "GroupAddRev": Case(lambda: models.GroupAddRev(pyg.SAGEConv(IN // 2, IN // 2), num_groups=2), x_edges),
    "to_hetero[SAGEConv x 2]": Case(hetero_sage, two_node_types),
    "HGTConv x 2": Case(TwoHGT, two_node_types),
}


class Projected(nn.Module):
    """A linear map, then message passing written with plain torch calls."""

    def __init__(self, propagate: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = Linear(IN, OUT)
        self.propagate = propagate

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        return self.propagate(self.linear(x), edge_index, weight)


def index_add(h: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
    return torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]] * w[:, None])


def index_add_in_place(h: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros(h.size(0), h.size(1))
    out.index_add_(0, edge_index[1], h.index_select(0, edge_index[0]) * w.unsqueeze(-1))
    return out


def scatter_add(h: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
    messages = torch.index_select(h, 0, edge_index[0]) * w.view(-1, 1)
    return torch.zeros_like(h).scatter_add(0, edge_index[1].view(-1, 1).expand_as(messages), messages)


def gather_scatter_mean(h: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
    messages = torch.gather(h, 0, edge_index[0][:, None].expand(-1, h.size(1)))
    index = edge_index[1][:, None].expand_as(messages)
    return torch.scatter_reduce(torch.zeros_like(h), 0, index, messages, "mean", include_self=False)


def index_put(h: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
    return torch.zeros_like(h).index_put((edge_index[1],), h[edge_index[0]] * w[:, None], accumulate=True)


def dot_predictor(h: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
    return (h[edge_index[0]] * h[edge_index[1]]).sum(-1)


class PlainGAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = Linear(IN, 32)
        self.attention = nn.Parameter(torch.randn(2, 4, 8))

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        src, dst = edge_index
        h = self.linear(x).view(-1, 4, 8)
        n = h.size(0)
        logits = (h * self.attention[0]).sum(-1)[src] + (h * self.attention[1]).sum(-1)[dst]
        e = F.leaky_relu(logits, 0.2)
        largest = torch.full((n, 4), float("-inf")).scatter_reduce(0, dst[:, None].expand(-1, 4), e, "amax")
        p = (e - largest[dst]).exp()
        a = p / torch.zeros(n, 4).index_add(0, dst, p)[dst]
        return torch.zeros_like(h).index_add(0, dst, h[src] * a[:, :, None])


PLAIN: dict[str, Case] = {
    f"plain {f.__name__}": Case(lambda f=f: Projected(f), x_edges_weights)
    for f in (index_add, index_add_in_place, scatter_add, gather_scatter_mean, index_put, dot_predictor)
} | {"plain GAT": Case(PlainGAT, x_edges_weights)}

CASES = {**CONVS, **MODELS, **PLAIN}
