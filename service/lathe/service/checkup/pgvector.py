"""A column of vectors in PostgreSQL as a checkup reads and searches it."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from lathe.service.errors import BadValueError
from lathe.service.index.pgvector.connection import Connection
from lathe.service.index.pgvector.filling import FullVectors, read_sample
from lathe.training.checkup.store import Hits, Metric, Rows
from lathe.transforms.vectors import FloatArray

OPERATORS: dict[str, str] = {"cosine": "<=>", "ip": "<#>", "l2": "<->", "hamming": "<~>"}
"""Operator of each metric in the name of an operator class."""
SETTINGS = {"hnsw": ("hnsw.ef_search", 1000), "ivfflat": ("ivfflat.probes", 32768)}
"""Name and maximum of the setting that each method's searches take their number of candidates from."""
TRIED = (1, 2, 4, 8, 16)
"""Multiples of the present number of candidates that are tried."""


class PgvectorStore:
    """Column of vectors, and the index that its searches use.

    The index may be over the column or over an expression of it, such as `embedding::halfvec(384)` or
    `binary_quantize(embedding)::bit(384)`.

    Raises:
        BadValueError: if the column has no index of pgvector and no metric is named.
    """

    def __init__(self, connection: Connection, full: FullVectors, text: str | None, metric: Metric | None) -> None:
        self.connection, self.full, self.text = connection, full, text
        column = connection.execute("SELECT quote_ident(%s)", (full.column.name,)).fetchone()
        assert column is not None
        self.column: str = column[0]
        self.name = f"{full.table.name}.{full.column.name}"
        self.effort_name = ""
        self.efforts: tuple[int, ...] = ()
        self.quantizer: str | None = None
        self.expression, kind = self.column, str(metric) if metric is not None else None
        if (found := self._find_index()) is not None:
            method, operators, self.expression = found
            kind = next((name for name in OPERATORS if f"_{name}_" in operators), None)
            self.effort_name, largest = SETTINGS[method]
            present = int(self._show(self.effort_name))
            self.efforts = tuple(min(present * multiple, largest) for multiple in TRIED)
            if self.expression != self.column:
                self.quantizer = self.expression
        if kind is None:
            raise BadValueError(f"{self.name} has no index by {', '.join(OPERATORS)}: name a metric", param="metric")
        self.operator = OPERATORS[kind]
        # Signs are compared in place of cosines.
        self.metric: Metric = metric or ("l2" if kind == "l2" else "ip" if kind == "ip" else "cosine")

    def _find_index(self) -> tuple[str, str, str] | None:
        """Return method, operator class and indexed expression of the first index on the column, or None."""
        rows = self.connection.execute(
            "SELECT m.amname, o.opcname, pg_get_indexdef(i.indexrelid, 1, false) FROM pg_index i "
            "JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam "
            "JOIN pg_opclass o ON o.oid = i.indclass[0] WHERE i.indrelid = %s AND i.indisvalid "
            "AND m.amname IN ('hnsw', 'ivfflat') ORDER BY i.indexrelid",
            (self.full.table.oid,),
        ).fetchall()
        # An expression names the column between brackets, as an operand of a cast or function.
        return next((row for row in rows if row[2] == self.column or f"({self.column})" in row[2]), None)

    def _show(self, setting: str) -> Any:
        self.connection.execute("SELECT '[1]'::vector")  # loads pgvector, whose settings are not there before
        row = self.connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
        assert row is not None
        return row[0]

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` rows drawn at random, with the primary key as id."""
        table = self.full.table
        key = [sql.Identifier(name) for name in table.key] or [sql.Identifier("ctid")]
        more = [sql.SQL("concat_ws(',', {})").format(sql.SQL(", ").join(key))]
        if self.text is not None:
            more.append(sql.SQL("{}::text").format(sql.Identifier(self.text)))
        batches = list(read_sample(self.connection, self.full, max_rows, more))
        count = sql.SQL("SELECT count({}) FROM {}").format(sql.Identifier(self.full.column.name), table.name.identifier)
        total = self.connection.execute(count).fetchone()
        assert total is not None
        if not batches:
            raise BadValueError(f"no row of {table.name} has a vector in {self.full.column.name}", param="column")
        others = [values for _, rows in batches for values in rows]
        texts = [values[1] for values in others] if self.text is not None else None
        return Rows([values[0] for values in others], np.concatenate([rows for rows, _ in batches]), texts, total[0])

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Search through the index as the planner chooses, with another number of candidates if one is given."""
        settings = {} if effort is None else {self.effort_name: effort}
        return self._ask(queries, k, self.expression, self.operator, settings)

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all rows, by the indexed expression, or with `full` by the column."""
        settings = {"enable_indexscan": "off"}
        if full:
            return self._ask(queries, k, self.column, OPERATORS[self.metric], settings)
        return self._ask(queries, k, self.expression, self.operator, settings)

    def _ask(self, queries: FloatArray, k: int, expression: str, operator: str, settings: dict[str, Any]) -> Hits:
        key = sql.SQL(", ").join([sql.Identifier(name) for name in self.full.table.key] or [sql.Identifier("ctid")])
        # The query goes through the expression that the rows went through.
        asked = expression.replace(self.column, f"%(query)s::{self.full.kind}")
        statement = sql.SQL(
            "SELECT concat_ws(',', {key}), {distance} FROM {table} ORDER BY {distance} LIMIT {k}"
        ).format(
            key=key,
            table=self.full.table.name.identifier,
            distance=sql.SQL(f"{expression} {operator} {asked}"),  # from the catalogue
            k=sql.Literal(k),
        )
        ids: list[list[str]] = []
        scores: list[NDArray[np.float64]] = []
        seconds = 0.0
        with self.connection.transaction():
            for name, value in settings.items():
                self.connection.execute("SELECT set_config(%s, %s, true)", (name, str(value)))
            for query in queries:
                text = "[" + ",".join(map(repr, query.tolist())) + "]"
                begun = time.perf_counter()
                # A prepared statement would keep the plan that other settings chose.
                found = self.connection.execute(statement, {"query": text}, prepare=False).fetchall()
                seconds += time.perf_counter() - begun
                ids.append([row[0] for row in found])
                scores.append(-np.array([row[1] for row in found], np.float64))
        return Hits(ids, scores, seconds / max(len(queries), 1))
