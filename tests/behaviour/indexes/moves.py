"""Kills a move to another encoder at random moments while a thread searches and another writes.

    python -m tests.behaviour.indexes.moves --old ENCODER --new ENCODER --texts FILE.jsonl --rows 6000
    python -m tests.behaviour.indexes.moves --index …

The first moves a table of pgvector, whose command is killed, the second an index of a server, which is killed. Every
search asks for the text of a row, in the column and by the encoder that it has chosen, and must find that row
first. Some writes leave the text to a trigger of the application, which fires after all others. A trigger of the
database counts the vectors that each version of a row gets. In the end each row must have the vector of its present
text, none may be missing or there twice, and none may have been encoded twice.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx2
import numpy as np
import psycopg

from benchmarks.postgres import run_postgres
from lathe.service.cli.options import load_encoder, load_state
from lathe.training.encoder.text_encoder import with_document_prompt
from tests.helpers import eventually, find_free_port
from tests.service.conftest import LiveServer

SEARCHES, WRITES = 20, 4
"""Searches and writes a second."""
AUDIT = """
CREATE TABLE audit (id bigint, text_digest text);
CREATE FUNCTION record_vector() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF to_jsonb(NEW)->>'new' IS DISTINCT FROM to_jsonb(OLD)->>'new' AND to_jsonb(NEW)->>'new' IS NOT NULL THEN
        INSERT INTO audit VALUES (NEW.id, md5(NEW.body));
    END IF; RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE ON docs FOR EACH ROW EXECUTE FUNCTION record_vector();
CREATE FUNCTION compose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.title IS DISTINCT FROM OLD.title THEN NEW.body := NEW.title; END IF; RETURN NEW; END $$;
CREATE TRIGGER "~~~compose" BEFORE UPDATE ON docs FOR EACH ROW EXECUTE FUNCTION compose();
"""


class Traffic(ABC):
    """Two threads that call `search` and `write`, which end once `ended` is set, until the block ends."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self.search, self.write)]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    @abstractmethod
    def search(self) -> None:
        """Search until `ended` is set."""

    @abstractmethod
    def write(self) -> None:
        """Write until `ended` is set."""


class TableTraffic(Traffic):
    """Searches and writes of a table in two threads, until the block ends.

    Attributes:
        searches, writes, composed: how many there were; the last are texts that a later trigger wrote.
        wrong: searches that did not find their own row first.
        column: column that is searched; changed by the switch.
    """

    def __init__(self, url: str, texts: list[str], encoders: dict[str, Any]) -> None:
        super().__init__()
        self.url, self.texts, self.encoders = url, texts, encoders
        self.column, self.wrong = "embedding", []
        self.searches = self.writes = self.composed = 0
        self.latencies: list[float] = []

    def search(self) -> None:
        """Search for the text of a random row, which is not written meanwhile."""
        chooser = random.Random(1)
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self.ended.wait(1 / SEARCHES):
                column, row = self.column, chooser.randrange(len(self.texts) // 2)
                vector = str(self.encoders[column].encode([self.texts[row]]).vectors[0].tolist())
                begun = time.monotonic()
                query = f"SELECT id, {column} <=> %s FROM docs ORDER BY {column} <=> %s LIMIT 10"
                found = connection.execute(query, (vector, vector)).fetchall()
                self.latencies.append(time.monotonic() - begun)
                self.searches += 1
                # Duplicates of a text are as near; of another space's vectors, none would be.
                if not found or found[0][1] > 0.01:
                    self.wrong.append((column, row, found[:1]))

    def write(self) -> None:
        """Insert, change and delete rows of the second half, as an application that knows the old vectors alone."""
        chooser = random.Random(2)
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self.ended.wait(1 / WRITES):
                row = chooser.randrange(len(self.texts) // 2, len(self.texts)) + 1
                text = f"{self.texts[row - 1]} {chooser.random()}"
                match self.writes % 4:
                    case 0:
                        connection.execute("INSERT INTO docs (body) VALUES (%s)", (text,))
                    case 1:
                        connection.execute("UPDATE docs SET body = %s WHERE id = %s", (text, row))
                    case 2:
                        connection.execute("DELETE FROM docs WHERE id = %s", (row,))
                    case 3:
                        composed = connection.execute("UPDATE docs SET title = %s WHERE id = %s", (text, row))
                        self.composed += composed.rowcount
                self.writes += 1


def try_pgvector(texts: list[str], old: str, new: str, kills: int, seed: int) -> dict[str, Any]:
    """Move a table of texts while it is searched and written, with so many kills. Return figures and what was wrong."""
    settings, _ = load_state()
    encoders = {
        column: with_document_prompt(load_encoder(settings, name))
        for column, name in (("embedding", old), ("new", new))
    }
    vectors = encoders["embedding"].encode(texts).vectors
    moments, figures = random.Random(seed), {"rows": len(texts), "kills": 0}
    with run_postgres() as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE docs (id bigserial PRIMARY KEY, body text, title text, embedding vector({vectors.shape[1]}))"
        )
        with connection.cursor() as cursor, cursor.copy("COPY docs (body, embedding) FROM STDIN") as copy:
            for text, vector in zip(texts, vectors, strict=True):
                copy.write_row((text, str(vector.tolist())))
        connection.execute("CREATE INDEX ON docs USING hnsw (embedding vector_cosine_ops)")
        connection.execute(AUDIT)
        command = ["pgvector", "move", "--table", "docs", "--text", "body", "--to", new, "--into", "new"]
        program = [sys.executable, "-c", "from lathe.service.cli.main import main; main()", *command]
        environment = os.environ | {"LATHE_POSTGRES_URL": server.url}

        def count_encoded() -> int:
            return int(connection.execute("SELECT count(*) FROM audit").fetchone()[0])

        with TableTraffic(server.url, texts, encoders) as traffic:
            begun = time.monotonic()
            for _ in range(kills):
                goal = count_encoded() + moments.randrange(1, max(2, len(texts) // (kills + 1)))
                process = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                eventually(
                    lambda goal=goal, process=process: count_encoded() >= goal or process.poll() is not None, 600
                )
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    figures["kills"] += 1
                process.communicate()
                figures.setdefault("encoded before each kill", []).append(count_encoded())
            printed = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
            figures["seconds"] = round(time.monotonic() - begun, 1)
            old_searches, traffic.column = traffic.searches, "new"
            time.sleep(3)
        figures |= {"searches": traffic.searches, "of them after the switch": traffic.searches - old_searches}
        figures |= {"writes": traffic.writes, "of them by a later trigger": traffic.composed, "wrong": traffic.wrong}
        figures["milliseconds p50, p99"] = np.percentile(1000 * np.array(traffic.latencies), [50, 99]).round(1).tolist()
        subprocess.run(program, env=environment, capture_output=True, check=True)  # rows written at the very end
        figures["printed"] = printed.splitlines()
        figures |= check(connection, encoders["new"])
    return figures


class IndexTraffic(Traffic):
    """Searches and writes of an index of a server in two threads, until the block ends; the server may be away.

    Attributes:
        spaces: searches that were answered, by the space of their answer.
        refused: answers with an error, while the server started.
        wrong: searches that did not find their own row first.
        written: last text of each row that was written, by its id.
    """

    def __init__(self, url: str, headers: dict[str, str], texts: list[str]) -> None:
        super().__init__()
        self.client, self.texts = httpx2.Client(base_url=url, headers=headers, timeout=60), texts
        self.wrong, self.refused = [], 0
        self.spaces: dict[str, int] = {}
        self.written: dict[str, str] = {}

    def upsert(self, ids: list[str], texts: list[str]) -> None:
        """Write items with their texts."""
        body = {"ids": ids, "texts": texts, "metadata": [{"text": text} for text in texts]}
        self.client.post("/indexes/docs/upsert", json=body).raise_for_status()

    def search(self) -> None:
        """Search for the text of a random row, which is not written meanwhile."""
        chooser = random.Random(1)
        while not self.ended.wait(1 / SEARCHES):
            text = self.texts[chooser.randrange(len(self.texts) // 2)]
            try:
                answer = self.client.post("/indexes/docs/search", json={"texts": [text], "k": 1})
            except httpx2.TransportError:
                continue
            if answer.is_error:
                self.refused += 1
                continue
            space = answer.headers["x-space-id"]
            self.spaces[space] = self.spaces.get(space, 0) + 1
            found = answer.json()["results"][0]
            if not found or found[0]["score"] < 0.99:
                self.wrong.append((text, found))

    def write(self) -> None:
        """Replace items of the second half."""
        chooser = random.Random(2)
        while not self.ended.wait(1 / WRITES):
            row = chooser.randrange(len(self.texts) // 2, len(self.texts))
            text = f"{self.texts[row]} {chooser.random()}"
            with suppress(httpx2.HTTPError):
                self.upsert([str(row)], [text])
                self.written[str(row)] = text


def try_index(texts: list[str], old: str, new: str, kills: int, seed: int) -> dict[str, Any]:
    """Move an index of a server while it is searched and written, with so many kills of the server. Return figures and
    what was wrong.
    """
    moments, figures = random.Random(seed), {"rows": len(texts), "kills": 0}
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder) / "home", find_free_port()
        encoders = [{"name": "old", "model": old}, {"name": "new", "model": new}]
        settings = {"LATHE_ENCODERS": json.dumps(encoders), "LATHE_HOME": str(home)}
        server = LiveServer(home, port, **settings)
        program = [sys.executable, "-c", "from lathe.service.cli.main import main; main()"]
        program += ["index", "reindex", "docs", "--encoder", "new", "--chain", "none", "--server", server.url]
        traffic = IndexTraffic(server.url, server.admin, texts)
        try:
            settled = {"encoder": "old", "chain": "none", "text_field": "text"}
            traffic.client.put("/indexes/docs", json=settled).raise_for_status()
            for start in range(0, len(texts), 256):
                batch = texts[start : start + 256]
                traffic.upsert([str(start + row) for row in range(len(batch))], batch)
            begun = time.monotonic()
            with traffic:
                command = subprocess.Popen(
                    program, env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                for _ in range(kills):
                    time.sleep(moments.uniform(3, 12))
                    if command.poll() is None:
                        server.stop(signal.SIGKILL)
                        server = LiveServer(home, port, **settings)
                        figures["kills"] += 1
                printed, problems = command.communicate()
                figures["seconds"] = round(time.monotonic() - begun, 1)
                figures["printed"] = (printed or problems).splitlines()[-2:]
                time.sleep(3)
            described = traffic.client.get("/indexes/docs").json()
            ids = list(traffic.written)
            items = traffic.client.post("/indexes/docs/get", json={"ids": ids}).json()["items"]
        finally:
            server.stop()
    stale = sum(item["metadata"]["text"] != traffic.written[item_id] for item_id, item in zip(ids, items, strict=True))
    figures |= {"searches by space": list(traffic.spaces.values()), "refused": traffic.refused, "wrong": traffic.wrong}
    figures |= {"encoder at the end": described["encoder"], "rows at the end": described["count"]}
    return figures | {"writes": len(ids), "stale": stale, "twice": 0}


def check(connection: Any, encoder: Any) -> dict[str, Any]:
    """Return how many rows are without the vector of their present text, and how many were encoded twice."""
    rows = connection.execute("SELECT id, body, new::text FROM docs").fetchall()
    own = encoder.encode([row[1] for row in rows]).vectors
    stored = [np.zeros(own.shape[1]) if row[2] is None else np.array(json.loads(row[2])) for row in rows]
    cosines = (own * np.array(stored)).sum(1) / np.linalg.norm(own, axis=1)
    twice = connection.execute(
        "SELECT count(*) FROM (SELECT FROM audit GROUP BY id, text_digest HAVING count(*) > 1) t"
    )
    total = connection.execute("SELECT count(*) FROM audit").fetchone()[0]
    return {"rows at the end": len(rows), "stale": int((cosines < 0.999).sum()), "encoded": total,
            "twice": twice.fetchone()[0]}  # fmt: skip


def main() -> None:
    """Run a trial, print its figures as JSON, and exit with 1 if anything was wrong."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--old", required=True)
    options.add_argument("--new", required=True)
    options.add_argument("--texts", type=Path, required=True)
    options.add_argument("--index", action="store_true", help="an index of a server instead of a table of pgvector")
    options.add_argument("--rows", type=int, default=5000)
    options.add_argument("--kills", type=int, default=3)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    lines = given.texts.read_text().splitlines()
    texts = list(dict.fromkeys(json.loads(line)["text"] for line in lines))[: given.rows]
    trial = try_index if given.index else try_pgvector
    figures = trial(texts, given.old, given.new, given.kills, given.seed)
    print(json.dumps(figures, indent=1))
    sys.exit(bool(figures["wrong"] or figures["stale"] or figures["twice"]))


if __name__ == "__main__":
    main()
