"""PyG models that take a Data object."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torch_geometric")

import torch_geometric.nn as pyg
from compare import run_captured
from torch_geometric.data import Batch, Data, HeteroData

from gqc.capture import capture, read_call


def graph(nodes: int, edges: int, **more: Any) -> Data:
    return Data(x=torch.randn(nodes, 8), edge_index=torch.randint(0, nodes, (2, edges)), **more)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = pyg.GCNConv(8, 16), nn.Linear(16, 3)

    def forward(self, data: Data) -> Tensor:
        h = self.conv(data.x, data.edge_index).relu()
        return self.head(pyg.global_mean_pool(h, data.batch, data.num_graphs))


def test_a_batch_of_graphs() -> None:
    model = Pooled()
    first, second = (Batch.from_data_list([graph(n, 3 * n, name=f"g{n}") for n in sizes]) for sizes in ((5, 7), (9, 4)))
    captured = capture(model, (first,))
    assert captured.islands == []
    for batch in (first, second):
        actual, expected = run_captured(captured, (batch,)), model(batch)
        torch.testing.assert_close(actual, expected)
        gradients = [torch.autograd.grad(y.sin().sum(), list(model.parameters())) for y in (actual, expected)]
        torch.testing.assert_close(*gradients)
    three = Batch.from_data_list([graph(5, 9) for _ in range(3)])
    assert read_call((three,), {}).key != read_call((first,), {}).key


def test_a_heterogeneous_graph() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv((8, 6), 4)

        def forward(self, data: HeteroData) -> Tensor:
            return self.conv((data["user"].x, data["item"].x), data["user", "rates", "item"].edge_index)

    def sample(users: int, items: int) -> HeteroData:
        data = HeteroData()
        data["user"].x, data["item"].x = torch.randn(users, 8), torch.randn(items, 6)
        data["user", "rates", "item"].edge_index = torch.stack(
            [torch.randint(0, users, (40,)), torch.randint(0, items, (40,))]
        )
        return data

    model = Net()
    captured = capture(model, (sample(7, 5),))
    for data in (sample(7, 5), sample(12, 9)):
        torch.testing.assert_close(run_captured(captured, (data,)), model(data))


def test_what_a_model_writes_to_data_is_written_back() -> None:
    class Writes(nn.Module):
        def forward(self, data: Data) -> Data:
            data.h = data.x * 2
            del data.y
            return data

    captured = capture(Writes(), (graph(5, 9, y=torch.zeros(5)),))
    data = graph(6, 9, y=torch.zeros(6))
    assert run_captured(captured, (data,)) is data
    torch.testing.assert_close(data.h, data.x * 2)
    assert "y" not in data
