"""Choice of the engine of a generation's graph, by what its rows hold and by what is installed."""

from importlib.util import find_spec

from service.index.embedded.graphs.code_graph import CodeGraph
from service.index.embedded.graphs.graph import Graph
from service.index.embedded.graphs.hnsw import HnswGraph
from service.index.embedded.graphs.scoring import choose_scoring
from service.index.embedded.vector_formats import CodeFormat, VectorFormat
from service.index.spec import IndexSpec


def create_graph(spec: IndexSpec, vectors: VectorFormat, threads: int) -> Graph | None:
    """Return an empty graph for a generation; None if no engine for its rows is installed.

    FAISS's graph holds codes; hnswlib's holds floats, to which codes that FAISS cannot score are decoded.

    Args:
        spec: settings of the generation.
        vectors: format of the compact vectors in its rows.
        threads: number of threads for a search.
    """
    if isinstance(vectors, CodeFormat) and find_spec("faiss") and (scoring := choose_scoring(vectors)):
        return CodeGraph(spec, scoring, threads)
    return HnswGraph(spec, vectors.decode, threads) if find_spec("hnswlib") else None


def find_graph_problem(graph: Graph | None) -> str | None:
    """Return a message for the user if searches are exact, because the graph's engine is not installed; else None."""
    if graph is not None:
        return None
    return (
        "searches are exact: pip install 'lathe[index]' makes graphs of floats (it needs a C++ compiler), "
        "'lathe[faiss]' those of codes"
    )
