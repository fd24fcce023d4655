"""``Policy.cuda_graph``: the halves of a compiled stage recorded once and replayed as CUDA graphs."""

from gqc.cuda_graph.stage import GraphedStage, Usage

__all__ = ["GraphedStage", "Usage"]
