"""Write what every pass did with a model into a folder, for people: ``gqc.compile(model, dump="DIR")``.

``DIR/variant1_train/stage1`` holds, for each pass, a Python file of the graph that runs on its own and its difference
to the file before; ``reasons.json``; ``graph.graphml``; and ``index.html``, which shows all of it and needs no network.
docs/dump.md says how to read them.
"""

from gqc.dump.dumper import Dumper
from gqc.dump.inspect import write_dump

__all__ = ["Dumper", "write_dump"]
