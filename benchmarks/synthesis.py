"""Measures synthesis from seed questions to an encoder, against a local endpoint that fails often, and with a kill.

No language model answers: a stand-in speaks the protocol and takes its answers from questions and answers about
finance, some of them of the test set, which must not come out as pairs. It refuses, breaks, stalls and answers
nonsense:

    python -m benchmarks.synthesis --data /path/to/data --out benchmarks/results
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import LATHE, own_environment
from lathe.training.datasets.folder import FolderDataSet

TIMEOUT_SECONDS = 2.0
FAULTS = {"429": 0.05, "500": 0.05, "a page": 0.03, "cut": 0.03, "stall": 0.005, "nonsense": 0.05}
"""Shares of requests with each fault."""
PROBE = "Say yes."
MIN_PASSAGE = 200
"""Minimum characters of a document; shorter ones are left out."""

FROM_TEST, CHANGED, FILTERED = 0.1, 0.1, 0.2
"""Shares of the answers: texts of the test set; queries that differ from another in a word; queries to filter out."""


@dataclass
class Finance:
    """Pairs to train on, and the texts of the test set, from which the stand-in answers."""

    pairs: list[tuple[str, str]]
    held_out: list[tuple[str, str]]

    def query(self, chance: random.Random) -> str:
        """Return a random question, sometimes one of the test set, or another with a word more."""
        draw = chance.random()
        if draw < FROM_TEST:
            return chance.choice(self.held_out)[0]
        query = chance.choice(self.pairs)[0]
        return f"Please: {query}" if draw < FROM_TEST + CHANGED else query

    def passage(self, chance: random.Random) -> str:
        """Return a random answer, sometimes one of the test set."""
        return chance.choice(self.held_out if chance.random() < FROM_TEST else self.pairs)[1]

    def answer(self, prompt: str) -> str:
        """Return the answer to a prompt, which is the same each time."""
        chance = random.Random(prompt)
        if "JSON list of 1 objects" in prompt:
            role = chance.choice(["An adviser", "A tax clerk", "A treasurer", "A private investor"])
            return json.dumps([{"persona": f"{role} no. {chance.random()}", "task": "Answers questions about money."}])
        if "JSON list of 3 strings" in prompt:
            return json.dumps([self.query(chance) for _ in range(3)])
        if "yes or no" in prompt or prompt == PROBE:
            return "No." if prompt != PROBE and chance.random() < FILTERED else "Yes."
        return self.passage(chance)


class StandIn(ThreadingHTTPServer):
    """The endpoint that stands in for a language model."""

    daemon_threads = True

    def __init__(self, finance: Finance) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.finance, self.chance = finance, random.Random(0)
        self.lock = threading.Lock()
        self.faults: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.answered = 0
        self.good: set[str] = set()

    @property
    def url(self) -> str:
        """Address to which `/chat/completions` is added."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def fault(self, prompt: str) -> str | None:
        """Choose the fault of a request, or None.

        A probe has none.
        """
        with self.lock:
            self.asked[prompt] += 1
            if prompt == PROBE:
                return None
            draw = self.chance.random()
            for name, share in FAULTS.items():
                draw -= share
                if draw < 0:
                    self.faults[name] += 1
                    return name
        return None

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that disconnect."""


class Handler(BaseHTTPRequestHandler):
    """Handler that answers a request, or fails."""

    server: StandIn

    def do_POST(self) -> None:
        """Answer a request for a chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["messages"][0]["content"]
        fault = self.server.fault(prompt)
        if fault == "stall":
            time.sleep(2 * TIMEOUT_SECONDS)
        if fault in ("429", "500"):
            self.send(int(fault), b'{"error": {"message": "not now"}}')
        elif fault == "a page":
            self.send(200, b"<html>Bad gateway</html>")
        else:
            text = "I would rather not." if fault == "nonsense" else self.server.finance.answer(prompt)
            self.send(200, build_completion(text, "length" if fault == "cut" else "stop"))
            if fault != "stall":
                self.server.answered += 1
            if fault is None:
                self.server.good.add(prompt)

    def send(self, status: int, payload: bytes) -> None:
        """Send a whole response."""
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def build_completion(text: str, finish_reason: str) -> bytes:
    """Build an answer of the protocol, without usage, so that tokens are estimated."""
    message = {"role": "assistant", "content": text}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}).encode()


def main() -> None:
    """Synthesize pairs with a kill in between, train a little, and write the figures."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="a folder with finance/fiqa_qa")
    options.add_argument("--seeds", type=int, default=100, help="questions with answers to begin with")
    arguments = options.parse_args()
    finance = read_finance(arguments.data / "finance" / "fiqa_qa")
    seeds = 12 if arguments.quick else arguments.seeds
    with StandIn(finance) as server, tempfile.TemporaryDirectory() as name:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        folder = Path(name)
        write_jobs(folder, finance.pairs[:seeds], finance.held_out, server.url)
        figures: dict[str, Any] = {"seeds": seeds, "faults": FAULTS}
        killed = kill_half_way(folder, server, 3 * seeds)
        run_lathe(folder, "train", "synthesize", "--config", "job.yaml", "--out", "pairs", "--yes")
        figures |= collect_figures(folder / "pairs", server, finance, killed)
        run_lathe(folder, "train", "ft", "--config", "train.yaml", "--out", "model")
        figures["training"] = read_training(folder / "model")
        server.shutdown()
    print(markdown_table(["", ""], build_table(figures)))
    print("raw figures:", write_report(arguments.out, "synthesis", figures), file=sys.stderr)


def read_finance(folder: Path) -> Finance:
    """Read questions with an answer each, of the training and of the test split.

    No text is in both.
    """
    data_set = FolderDataSet("fiqa_qa", "retrieval", folder)
    texts = {name: {row["_id"]: row["text"] for row in data_set.read_rows(name)} for name in ("queries", "corpus")}
    splits = [
        [
            (texts["queries"][query], texts["corpus"][document])
            for _, query, document, _ in data_set.read_judgements(split)
        ]
        for split in ("train", "test")
    ]
    train, test = splits
    known = {text for pair in test for text in pair}
    long = [pair for pair in train if len(pair[1]) >= MIN_PASSAGE]
    return Finance([pair for pair in long if known.isdisjoint(pair)], test)


def write_jobs(folder: Path, pairs: list[tuple[str, str]], held_out: list[tuple[str, str]], url: str) -> None:
    """Write the seeds, the test set, and the configs of the synthesis and of the training that follows."""
    for name, rows in (("seeds", pairs), ("test", held_out)):
        lines = [json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    job = {
        "endpoint": {"base_url": url, "model": "stand-in", "timeout": TIMEOUT_SECONDS},
        "seeds": {"jsonl": "seeds.jsonl"},
        "limits": {"backoff": 0.05, "concurrency": 8},
        "test_sets": [{"jsonl": "test.jsonl", "fields": ["question", "answer"]}],
    }
    training = {
        "sources": [{"jsonl": "pairs/pairs.jsonl"}],
        "negatives": {"num_negatives": 2, "range_min": 1, "relative_margin": 0.05, "allow_fewer": True},
        "training": {"learning_rate": 2e-5, "batch_size": 8, "max_length": 64},
    }
    (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
    (folder / "train.yaml").write_text(json.dumps(training))


def run_lathe(folder: Path, *words: str) -> str:
    """Run a command of Lathe in a folder, and return its output."""
    ended = subprocess.run(
        [*LATHE, *words], cwd=folder, env=own_environment(folder / "home"), capture_output=True, text=True
    )
    if ended.returncode:
        raise SystemExit(f"lathe {' '.join(words)}: {ended.stderr[-2000:]}")
    return ended.stdout


@dataclass(frozen=True)
class Killed:
    """State of a run when it was killed.

    Attributes:
        answered: number of requests that were answered.
        on_disk: number of answers on disk.
        good: number of requests of each prompt that needed no other answer.
    """

    answered: int
    on_disk: int
    good: dict[str, int]


def kill_half_way(folder: Path, server: StandIn, answers: int) -> Killed:
    """Start a run, and kill it after a number of answers."""
    words = [*LATHE, "train", "synthesize", "--config", "job.yaml", "--out", "pairs", "--yes"]
    running = subprocess.Popen(words, cwd=folder, env=own_environment(folder / "home"), stderr=subprocess.DEVNULL)
    while server.answered < answers and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    stored = sum(len(path.read_bytes().splitlines()) for path in (folder / "pairs" / "answers").glob("*.jsonl"))
    return Killed(server.answered, stored, {prompt: server.asked[prompt] for prompt in server.good})


def collect_figures(out: Path, server: StandIn, finance: Finance, killed: Killed) -> dict[str, Any]:
    """Collect the figures of the run, and count the texts of the test set among its pairs."""
    report = json.loads((out / "report.json").read_bytes())
    pairs = [json.loads(line) for line in (out / "pairs.jsonl").read_text().splitlines()]
    test = {text for pair in finance.held_out for text in pair}
    repeated = sum(server.asked[prompt] > times for prompt, times in killed.good.items() if prompt != PROBE)
    return {
        "requests": server.asked.total(),
        "faults_met": dict(server.faults),
        "killed": {"answered": killed.answered, "on_disk": killed.on_disk, "asked_again": repeated},
        "of_the_test_among_pairs": sum(pair["anchor"] in test or pair["positive"] in test for pair in pairs),
        "report": report,
    }


def read_training(folder: Path) -> dict[str, Any]:
    """Read the figures of a training."""
    report = json.loads((folder / "training.json").read_bytes())
    return {name: report[name] for name in ("steps", "pairs", "negatives")}


def build_table(figures: dict[str, Any]) -> list[list[str]]:
    """Build the rows of the table of figures."""
    report = figures["report"]
    rows = [["seeds", str(figures["seeds"])], ["requests", str(figures["requests"])]]
    rows += [[f"… that met {name}", str(count)] for name, count in figures["faults_met"].items()]
    killed = figures["killed"]
    killed_text = f"{killed['answered']}; {killed['on_disk']} on disk, {killed['asked_again']} asked again"
    rows += [["answered when it was killed", killed_text]]
    for stage, stage_figures in report["stages"].items():
        rejected = ", ".join(f"{count} {reason}" for reason, count in stage_figures["rejected"].items()) or "nothing"
        rows.append([stage, f"{stage_figures['calls']} asked, {stage_figures['kept']} kept; left out: {rejected}"])
    rows += [["pairs", str(report["pairs"])], ["of the test among them", str(figures["of_the_test_among_pairs"])]]
    rows += [["a training on them", "{negatives} negatives mined, {steps} steps".format(**figures["training"])]]
    return rows


if __name__ == "__main__":
    main()
