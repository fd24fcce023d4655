"""GCN, GAT and SAGE written with PyG, and a training step of one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.gpu_check.graphs import Law, Task
from tools.gpu_check.record import Missing

MODELS = ("gcn", "gat", "sage")
HIDDEN, HEADS = 128, 8


class Net(nn.Module):
    """Two PyG convolutions."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv1, conv2

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """``edges``: an edge index, or the transposed adjacency matrix as a sparse CSR tensor."""
        return self.conv2(F.relu(self.conv1(x, edges)), edges)


def net(name: str, law: Law, normalized: bool = False) -> Net:
    """A model without dropout, on the CPU.

    Args:
        name: one of :data:`MODELS`.
        normalized: whether a GCN gets its weights with the edges.

    Raises:
        Missing: PyG is not installed.
    """
    try:
        from torch_geometric.nn import GATConv, GCNConv, SAGEConv
    except ImportError as error:
        raise Missing(f"PyG: {error}") from error
    hidden = 16 if law.nodes < 1000 else HIDDEN
    if name == "gcn":
        how = {"normalize": False} if normalized else {"cached": True, "add_self_loops": False}
        return Net(GCNConv(law.features, hidden, **how), GCNConv(hidden, law.classes, **how))
    if name == "sage":
        return Net(SAGEConv(law.features, hidden), SAGEConv(hidden, law.classes))
    first = GATConv(law.features, hidden // HEADS, HEADS, add_self_loops=False)
    return Net(first, GATConv(hidden, law.classes, 1, add_self_loops=False))


def sparse_adjacency(name: str, task: Task) -> Tensor:
    """What PyG gives to cuSPARSE: the transposed adjacency matrix in CSR, with a GCN's weights in it."""
    indptr, indices, eids = task.g[:3]
    if name == "gcn":
        degree = (indptr[1:] - indptr[:-1]).float()
        factor = degree.rsqrt().masked_fill(degree == 0, 0)
        values = (factor[task.edge_index[0]] * factor[task.edge_index[1]])[eids.long()]
    else:
        values = torch.ones(len(indices), device=indices.device)
    nodes = len(indptr) - 1
    return torch.sparse_csr_tensor(indptr, indices, values, (nodes, nodes))


def training_step(model: nn.Module, task: Task, edges: Tensor | None = None, autocast: bool = False) -> Callable:
    """A step with Adam: forward, loss, backward, update; returns the loss, on the device."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    edges = task.edge_index if edges is None else edges

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(task.x.device.type, torch.bfloat16, enabled=autocast):
            out = model(task.x, edges)
        loss = F.cross_entropy(out.float(), task.y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
