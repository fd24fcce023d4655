"""gqc: train unmodified GNN models with quantized primitives."""
