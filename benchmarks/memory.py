"""Memory and time of a training step under each way to save activations in fewer bytes, in one run.

python -m benchmarks.memory --model gcn gat sage --data arxiv --scale 0.2 --json memory.json
python -m benchmarks.plot memory.json memory.svg

Contestants: DGL in fp32, the same with torch.utils.checkpoint around each layer but the last, under bf16 autocast; gqc
in full precision, with activations saved in 8, 4, 2 and 1 bits, by ``"auto"``, and with int8 products too.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks import saving_command
from benchmarks.graphs import LAWS, node_data
from benchmarks.models import ARCHITECTURES, DglNet, dgl_net, prepared
from benchmarks.peers import EAGER, Setting, training_step
from benchmarks.saving import COMPILED, Autocast, Contest, Made, Prepare, chosen, compiled
from examples.datasets import DATASETS, load


class Checkpointed(nn.Module):
    """A network of DGL's layers that saves the inputs of its layers alone and computes the rest twice."""

    def __init__(self, net: DglNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        def layer(conv: nn.Module, x: Tensor) -> Tensor:
            return self.net.dropout(F.relu(conv(graph, x).flatten(1)))

        for conv in self.net.convs[:-1]:
            x = checkpoint(layer, conv, x, use_reentrant=False)
        return self.net.convs[-1](graph, x).flatten(1)


CONTESTANTS: dict[str, Prepare] = {
    EAGER: lambda model: model,
    "checkpoint": Checkpointed,
    "DGL bf16 autocast": Autocast,
    **COMPILED,
    "gqc save_bits=auto": compiled(bits=32, save_bits="auto"),
    "gqc int8": compiled(),
    "gqc int8, save_bits=2": compiled(save_bits=2),
}
"""What prepares the network, by name."""


def contest(setting: Setting, names: list[str] | None) -> Contest:
    """The steps of one network on one graph.

    Args:
        setting: network, data and sizes.
        names: contestants, ``None`` for all; the base is always among them.
    """
    torch.manual_seed(0)
    data = prepared(setting.name, setting.data)
    net = dgl_net(setting.name, data, setting.hidden, setting.layers, setting.dropout)

    def make(name: str) -> Made:
        model = CONTESTANTS[name](copy.deepcopy(net))
        return training_step(model, data.graph, data), lambda: model(data.graph, data.features)

    sizes = f"{setting.layers} layers, hidden {setting.hidden}, on {setting.data.name}"
    described = {
        "model": setting.name,
        "data": setting.data.name,
        "hidden": setting.hidden,
        "layers": setting.layers,
        "dropout": setting.dropout,
    }
    title = f"{setting.name}, {sizes}; {torch.get_num_threads()} threads, dropout {setting.dropout:g}"
    return Contest(title, described, make, chosen(CONTESTANTS, names))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = saving_command.parser(__doc__, ARCHITECTURES, CONTESTANTS)
    out.set_defaults(model=["gcn", "gat", "sage"])
    out.add_argument("--data", choices=[*LAWS, *DATASETS], default="arxiv", help="a law to draw by, or a data set")
    out.add_argument("--scale", type=float, default=1.0, help="times the nodes and edges of the law")
    out.add_argument("--hidden", type=int, default=128)
    out.add_argument("--layers", type=int, default=3)
    out.add_argument("--dropout", action=argparse.BooleanOptionalAction, default=True)
    return out


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    data = node_data(args.data, args.scale) if args.data in LAWS else load(args.data, args.data_root)
    dropout = 0.5 if args.dropout else 0.0
    settings = [Setting(name, data, args.hidden, args.layers, dropout) for name in args.model]
    saving_command.run("benchmarks.memory", args, (contest(setting, args.contestant) for setting in settings))


if __name__ == "__main__":
    main()
