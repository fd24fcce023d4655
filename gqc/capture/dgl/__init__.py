"""DGL in the capture: DGL's own Python runs over a graph whose structure is made of recorded tensors."""

import gqc.runtime.ops  # noqa: F401  registers torch.ops.gqc
from gqc.capture.dgl.adapter import DGLAdapter

ADAPTER = DGLAdapter()
