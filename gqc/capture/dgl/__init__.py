"""DGL in the capture: DGL's own Python runs over a graph whose structure is made of recorded tensors."""

from gqc.capture.dgl.adapter import DGLAdapter

ADAPTER = DGLAdapter()
