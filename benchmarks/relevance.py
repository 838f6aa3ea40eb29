"""Time what probabilities add to a single search of an index, and what a calibration takes.

python -m benchmarks.relevance --out benchmarks/results
"""

import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.report import parser, write_report
from lathe.service.index.embedded.calibration import calibrate_again
from lathe.service.index.embedded.indexes import EmbeddedIndexes
from lathe.service.index.query import Query
from lathe.service.index.spec import IndexSpec

WIDTH, TOPICS, QUERIES = 384, 500, 2000


def measure(rows: int) -> dict[str, float]:
    """Return µs of CPU of a search without and with probabilities, alternating, and ms of a calibration."""
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
        begun = time.thread_time()
        calibration.measure_next(rows)
        hubs = time.thread_time() - begun
        times: dict[bool, list[float]] = {False: [], True: []}
        for number, query in enumerate(vectors[rows:]):
            calibrated = number // 20 % 2 == 1
            index.generation.calibration = calibration if calibrated else None
            begun = time.thread_time()  # not of other programs
            serving.search(Query(query[None], 10))
            times[calibrated].append(1e6 * (time.thread_time() - begun))
        indexes.close()
    plain, probable = (float(np.median(times[calibrated])) for calibrated in (False, True))
    return {"rows": rows, "plain_us": plain, "probable_us": probable, "added_us": probable - plain} | {
        "calibration_ms": 1000 * calibration.facts.seconds,
        "hubs_ms": 1000 * hubs,
    }


if __name__ == "__main__":
    options = parser(__doc__).parse_args()
    results = [measure(rows) for rows in (2_000, 10_000, 40_000)]
    write_report(options.out, "relevance", results)
    print(results)
