import copy

import pytest
import torch

from benchmarks.graphs import node_data
from benchmarks.models import dgl_net, prepared
from benchmarks.sparse_net import ARCHITECTURES, SparseNet


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_is_the_network_with_all_its_gradients(name: str) -> None:
    data = prepared(name, node_data("arxiv", scale=0.002))
    net = dgl_net(name, data, hidden=16, layers=3, dropout=0.5).eval()
    peer = SparseNet(copy.deepcopy(net), data.graph).eval()
    expected, out = net(data.graph, data.features), peer(data.graph, data.features)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-4 * expected.abs().max().item())
    weights = torch.randn_like(out)
    for result in (expected, out):
        (result * weights).sum().backward()
    # A softmax doesn't see what all edges of a target share, so the gradient of a target's side of attention may
    # be what is left of terms that cancel: as small as their rounding. The largest gradient bounds that for all.
    largest = max(parameter.grad.abs().max().item() for parameter in net.parameters())
    for one, other in zip(peer.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-4 * largest)
