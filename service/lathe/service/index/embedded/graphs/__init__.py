"""Search graphs over the first rows of a generation: one file per engine, and the choice among them.

The engine is chosen by what the rows hold, and by what is installed.
"""

from importlib.util import find_spec

from lathe.service.index.embedded.graphs.faiss_graph import FaissGraph
from lathe.service.index.embedded.graphs.graph import Graph, HnswGraph
from lathe.service.index.embedded.graphs.scoring import FloatScoring, choose_scoring
from lathe.service.index.embedded.vector_formats import CodeFormat, VectorFormat
from lathe.service.index.spec import IndexSpec


def create_graph(spec: IndexSpec, vector_format: VectorFormat, threads: int) -> Graph | None:
    """Return an empty search graph for an index's settings and vector format, or None if no graph library is installed.

    FAISS's graph holds the codes of the rows if FAISS can score them. Otherwise the graph holds floats: hnswlib's,
    which searches floats faster, or FAISS's if hnswlib is not installed.
    """
    has_faiss = find_spec("faiss") is not None
    if isinstance(vector_format, CodeFormat) and has_faiss and (scoring := choose_scoring(vector_format)):
        return FaissGraph(spec, scoring, threads)
    if find_spec("hnswlib"):
        return HnswGraph(spec, vector_format.decode, threads)
    return FaissGraph(spec, FloatScoring(vector_format, spec.dimensions), threads) if has_faiss else None


def find_graph_problem(graph: Graph | None) -> str | None:
    """Return a hint for the user if `graph` is None, as no graph library is installed, else None."""
    if graph is not None:
        return None
    return "searches are exact: pip install 'lathe-service[faiss]' makes graphs"
