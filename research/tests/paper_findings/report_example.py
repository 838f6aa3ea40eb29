"""An evaluation with something for every part of a report."""

import numpy as np

TASKS = {f"r{i}": "Retrieval" for i in range(5)} | {"stsb": "STS", "stsb_de": "STS", "clusters, or not": "Clustering"}
REFERENCE = "https://example.org/paper?a=1&b=2"


def build_all_scores(table):
    """Return scores of three encoders with methods of every group, one of them failed."""
    raw, values = np.linspace(0.3, 0.8, 8), {}
    for place, encoder in enumerate(["one", "two", "<script>three"]):
        gains = {"control": 0, "R1": 0.01, "R2": 0.02, "random, seed 42": -0.001, "random, seed 2": 0.002}
        gains |= {f"{kind}:{size}": -0.1 / size for kind in ("pca", "geopres", "truncation") for size in (2, 4)}
        gains |= {"compact": -0.15 if place else 0.15}
        scores = {name: raw + gain * (1 + place + np.arange(8) / 8) for name, gain in gains.items()}
        values |= table(encoder, TASKS, **{name: [float(s) for s in some] for name, some in scores.items()})
    values["two", "R1", "r0"] = None
    return values


def build_full_results(build, table, out):
    """Return results with something for every part of a report. `build` and `table` are fixtures of conftest."""
    values = build_all_scores(table)
    cells = [(encoder, method) for encoder, method, task in values if ":" in method and task == "r0"]
    measures = ("local_spearman", "positional", "angular", "recall_at_10")
    return build(
        values,
        TASKS,
        {"stsb_de": "de"},
        families={"one": "<i>kin", "two": "<i>kin"},
        norms={"one": 0.2, "two": 0.5, "<script>three": 0.8},
        intrinsic={cell: {name: 0.1 * place + 0.01 for name in measures} for place, cell in enumerate(cells)},
        problems={"one": {"other@1": "it was fitted on another encoder's vectors"}},
        broken={"torn": "test.jsonl: row 3 has no 'text'"},
        title="Ours <b>& theirs",
        out=out,
        corpus="/private/sentences.txt",
    )
