"""Programs of elementwise operations: their text, and the code that kernels interpret."""
