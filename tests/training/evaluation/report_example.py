"""An evaluation with something for every part of a report, and the elements of a report's page."""

from html.parser import HTMLParser

import numpy as np

TASKS = {f"r{i}": "Retrieval" for i in range(5)} | {"stsb": "STS", "stsb_de": "STS", "clusters, or not": "Clustering"}


def build_all_scores(table):
    """Return scores of three encoders with methods of every group, one of them failed."""
    raw, values = np.linspace(0.3, 0.8, 8), {}
    for place, encoder in enumerate(["one", "two", "<script>three"]):
        gains = {"control": 0, "R1": 0.01, "R2": 0.02, "small": -0.001, "compact": -0.15 if place else 0.15}
        scores = {name: raw + gain * (1 + place + np.arange(8) / 8) for name, gain in gains.items()}
        values |= table(encoder, TASKS, **{name: [float(s) for s in some] for name, some in scores.items()})
    values["two", "R1", "r0"] = None
    return values


def build_full_results(build, table, out):
    """Return results with something for every part of a report. `build` and `table` are fixtures of conftest."""
    return build(
        build_all_scores(table),
        TASKS,
        {"stsb_de": "de"},
        problems={"one": {"other@1": "it was fitted on another encoder's vectors"}},
        broken={"torn": "test.jsonl: row 3 has no 'text'"},
        title="Ours <b>& theirs",
        out=out,
    )


class Elements(HTMLParser):
    """Tags of an HTML page with attributes, tags still open, and its text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.open, self.text = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
