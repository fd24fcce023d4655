"""The options of commands that train recommenders: which data, and the sizes of model and batch."""

from __future__ import annotations

import argparse

from examples.recommendation.datasets import DATASETS


def add_data_and_sizes(parser: argparse.ArgumentParser) -> None:
    """Add ``--data``, ``--scale``, ``--batch``, ``--width`` and ``--layers``; TinyKG's values are the defaults."""
    parser.add_argument("--data", choices=DATASETS, default="amazon-book")
    parser.add_argument("--scale", type=float, default=10.0, help="what counts of the generated set are divided by")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--width", type=int, default=64, help="of embeddings")
    parser.add_argument("--layers", type=int, default=3)
