"""The options that all benchmarks of single graph kernels have, and the graph that they choose."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.ceilings import add_timer_options
from benchmarks.graphs import LAWS, relation


@dataclass(frozen=True)
class Drawn:
    """A graph to run kernels on.

    Attributes:
        g: its relation, int32.
        nodes: how many.
        title: law and sizes.
    """

    g: list[Tensor]
    nodes: int
    title: str


def graph_parser(doc: str | None, rounds: int = 15) -> argparse.ArgumentParser:
    """A parser that describes itself by ``doc``, with the options of the graph and of the timer."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--law", choices=LAWS, default="arxiv")
    parser.add_argument("--scale", type=float, default=1.0, help="of the law's nodes and edges")
    parser.add_argument("--hub", type=int, default=0, help="edges into one more node")
    add_timer_options(parser, rounds)
    return parser


def drawn(args: argparse.Namespace) -> Drawn:
    """The graph that the options choose; torch's generator starts afresh."""
    torch.manual_seed(0)
    law = LAWS[args.law].scaled(args.scale)
    sizes = f"{law.nodes:,} nodes, {law.edges + args.hub:,} edges"
    return Drawn(relation(law, args.hub), law.nodes, f"{args.law}, {sizes}")
