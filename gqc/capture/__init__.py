"""Capture: a model and one real call become a torch.fx graph."""

from gqc.capture.inputs import Call, InputPlan, UncapturedInput, read_call
from gqc.capture.islands import Island, calling
from gqc.capture.ladder import capture
from gqc.capture.modules import StateChange
from gqc.capture.record import Captured
from gqc.capture.tracer import is_capturing

__all__ = [
    "Call",
    "Captured",
    "InputPlan",
    "Island",
    "StateChange",
    "UncapturedInput",
    "calling",
    "capture",
    "is_capturing",
    "read_call",
]
