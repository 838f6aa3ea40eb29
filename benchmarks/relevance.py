"""Time what probabilities add to a single search of an index, and what a calibration takes.

python -m benchmarks.relevance --rows 10000 --json benchmarks/results/relevance.json
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from lathe.service.index.embedded.calibration import calibrate_again
from lathe.service.index.embedded.indexes import EmbeddedIndexes
from lathe.service.index.query import Query
from lathe.service.index.spec import IndexSpec

WIDTH, TOPICS, QUERIES = 384, 500, 2000


def measure(rows: int) -> dict[str, float]:
    """Return the µs of a search without and with probabilities, in blocks that alternate, and those of calibrating."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(TOPICS, WIDTH))
    vectors = (centres[rng.integers(TOPICS, size=rows + QUERIES)] + rng.normal(size=(rows + QUERIES, WIDTH))).astype(
        "f4"
    )
    spec = IndexSpec(None, None, WIDTH, "r", "none", WIDTH, "r")
    with tempfile.TemporaryDirectory() as folder:
        indexes = EmbeddedIndexes(Path(folder), 1, 2, lambda spec, texts: None)  # type: ignore[arg-type, return-value]
        index = indexes.create("timed", spec, None)
        index.upsert([str(n) for n in range(rows)], vectors[:rows], [None] * rows, None).result()
        index.wait_until_linked(lambda *_: None)
        calibrate_again(index.generation)
        calibration, serving = index.generation.calibration, index.get_serving()
        assert calibration is not None
        begun = time.perf_counter()
        calibration.measure_next(rows)
        hubs = time.perf_counter() - begun
        times: dict[bool, list[float]] = {False: [], True: []}
        for number, query in enumerate(vectors[rows:]):
            calibrated = number // 20 % 2 == 1
            index.generation.calibration = calibration if calibrated else None
            begun = time.perf_counter()
            serving.search(Query(query[None], 10))
            times[calibrated].append(1e6 * (time.perf_counter() - begun))
        indexes.close()
    plain, probable = (float(np.median(times[calibrated])) for calibrated in (False, True))
    return {"rows": rows, "plain_us": plain, "probable_us": probable, "added_us": probable - plain} | {
        "calibration_ms": 1000 * calibration.facts.seconds,
        "hubs_ms": 1000 * hubs,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 40_000])
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    results = [measure(rows) for rows in options.rows]
    options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
