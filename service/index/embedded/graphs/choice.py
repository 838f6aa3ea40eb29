"""Choice of the engine of a generation's graph, by what its rows hold."""

from service.index.embedded.graphs.graph import Graph
from service.index.embedded.graphs.hnsw import HnswGraph
from service.index.embedded.vector_formats import VectorFormat
from service.index.spec import IndexSpec


def create_graph(spec: IndexSpec, vectors: VectorFormat, threads: int) -> Graph | None:
    """Return an empty graph for a generation; None if no engine for its rows is installed.

    Args:
        spec: settings of the generation.
        vectors: format of the compact vectors in its rows.
        threads: number of threads for a search.
    """
    return None if find_graph_problem() else HnswGraph(spec, vectors.decode, threads)


def find_graph_problem() -> str | None:
    """Return a message for the user if hnswlib is not installed and searches are therefore exact; else None."""
    try:
        import hnswlib  # noqa: F401
    except ImportError:
        return "hnswlib is not installed, searches are exact: pip install 'lathe[index]' (needs a C++ compiler)"
    return None
