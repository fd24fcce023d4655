"""Message passing that is written as gathers and scatters (PyG, plain torch), found and put into graph ops."""

from gqc.capture.messages.find import find_messages

__all__ = ["find_messages"]
