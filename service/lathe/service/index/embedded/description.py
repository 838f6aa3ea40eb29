"""Description of an index: counts, bytes and memory by part, and advice."""

from typing import TYPE_CHECKING

from lathe.service.index.embedded.graphs.choice import find_graph_problem

if TYPE_CHECKING:
    from lathe.service.index.embedded.generation import Generation

WORTH_COMPACTING = 0.3
"""Share of dead rows above which `list_hints` suggests compaction."""


def describe_state(generation: "Generation") -> str:
    """Return `building` while more rows than exact search is fast for are not in the graph yet, else `ready`."""
    behind = generation.rows.count - generation.covered
    return "building" if generation.graph is not None and behind > generation.exact_rows else "ready"


def measure_bytes(generation: "Generation", record_bytes: int) -> dict[str, int]:
    """Return the bytes of record, rows and graph: the first two are files, the graph is in memory."""
    graph = generation.graph
    return {"record": record_bytes, "rows": generation.rows.bytes, "graph": graph.bytes if graph else 0}


def measure_memory(generation: "Generation", payload_bytes: int) -> dict[str, dict[str, int]]:
    """Return the memory of an open index in bytes by part, without and with the page cache.

    Returns:
        `anonymous`: memory of the process, for graph, mask of dead rows, and caches of filters and payloads.
            `page_cache`: sizes of the mapped row files, by name. The system holds as much of them as there is room
            for, and can drop it again; a process that has read them counts what it holds as shared resident memory.
    """
    rows, graph = generation.rows, generation.graph
    return {
        "anonymous": {
            "graph": graph.bytes if graph else 0,
            "alive": rows.alive.nbytes,
            "filters": generation.filters.bytes,
            "payloads": payload_bytes,
        },
        "page_cache": {file.path.name: rows.count * file.row_bytes for file in rows.files},
    }


def list_hints(generation: "Generation") -> list[str]:
    """Return advice for the user: to install a graph's engine, and to compact an index with over 30% dead rows."""
    rows = generation.rows
    found = [problem] if (problem := find_graph_problem(generation.graph)) else []
    if rows.dead > WORTH_COMPACTING * max(rows.count, 1):
        share = f"{rows.dead:,} of {rows.count:,} rows are of deleted or replaced items"
        found.append(f"{share}; /reindex with {{}} compacts")
    return found
