"""A column of vectors in PostgreSQL as a checkup reads and searches it."""

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from psycopg import sql

from lathe.service.errors import BadValueError, UnknownNameError
from lathe.service.index.pgvector.connection import Connection
from lathe.service.index.pgvector.filling import FullVectors, read_sample
from lathe.service.index.pgvector.table import find_indexes
from lathe.training.checkup.store import Change, Cures, Hits, Rows, Store, ask_each
from lathe.training.settings import Metric
from lathe.transforms.vectors import FloatArray

OPERATORS: dict[Metric, str] = {"cosine": "<=>", "ip": "<#>", "l2": "<->"}
"""Operator of each metric on vectors."""
METRICS: dict[str, Metric] = {"_cosine_": "cosine", "_ip_": "ip", "_l2_": "l2", "_hamming_": "cosine"}
"""Metric by what the name of an index's operator class holds; signs are compared in place of cosines."""
CHANGES = sql.Identifier(f"lathe_changes_{secrets.token_hex(6)}")
"""Temporary table of the vectors that are replaced."""
SETTINGS = {"hnsw": ("hnsw.ef_search", 1000), "ivfflat": ("ivfflat.probes", 32768)}
"""Name and maximum of the setting that each method's searches take their number of candidates from."""


class PgvectorStore(Store):
    """Column of vectors, and the index that its searches use.

    The index may be over the column or over an expression of it, such as `embedding::halfvec(384)` or
    `binary_quantize(embedding)::bit(384)`. Partial indexes are not considered.

    Args:
        connection: open connection.
        full: the column.
        text: column of the texts; None for none.
        metric: metric of the searches; None for the first index's, or cosine without an index.

    Raises:
        UnknownNameError: if the table has no column of the texts' name.
    """

    def __init__(self, connection: Connection, full: FullVectors, text: str | None, metric: Metric | None) -> None:
        if text is not None and text not in full.table.columns:
            raise UnknownNameError(
                f"the table {full.table.name} has no column {text}; it has {', '.join(full.table.columns)}",
                param="texts",
            )
        self.connection, self.full, self.text = connection, full, text
        self.name = f"{full.table.name}#{full.column.name}"
        self.column = self.expression = sql.Identifier(full.column.name).as_string(connection).replace("%", "%%")
        self.metric = metric or "cosine"
        self.operator = OPERATORS[self.metric]
        for index in find_indexes(connection, full.table, full.column.name, expressions=True):
            measured = next((kind for suffix, kind in METRICS.items() if suffix in index.operators), None)
            if index.valid and measured is not None and metric in (None, measured):
                self.metric = measured
                self.operator = "<~>" if "hamming" in index.operators else OPERATORS[measured]
                self.effort_name, largest = SETTINGS[index.method]
                self.cures = Cures(rebuild=f"REINDEX INDEX CONCURRENTLY {index.name}")
                present = self._show(self.effort_name)
                self.efforts = sorted({min(present * multiple, largest) for multiple in (1, 2, 4, 8, 16)})
                if (expression := index.expression) is not None:
                    self.quantizer = expression[1:-1] if expression.startswith("(") else expression
                    self.expression = expression.replace("%", "%%")
                break

    def _show(self, setting: str) -> int:
        self.connection.execute("SELECT '[1]'::vector")  # loads pgvector, whose settings are not there before
        row = self.connection.execute("SELECT current_setting(%s)::int", (setting,)).fetchone()
        assert row is not None
        return int(row[0])

    @property
    def _key(self) -> sql.Composed:
        """Primary key of a row as one text, or the row's address without one."""
        names = [sql.Identifier(name) for name in self.full.table.key or ("ctid",)]
        return sql.SQL("concat_ws(',', {})").format(sql.SQL(", ").join(names))

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` rows drawn at random, with the primary key as id.

        Raises:
            BadValueError: if the vectors have different numbers of dimensions.
        """
        table, name = self.full.table.name, sql.Identifier(self.full.column.name)
        # Only a column that declares no dimensions holds several, for which its vectors are read as a whole.
        dimensions = sql.SQL("vector_dims({})" if self.full.column.dimensions is None else "1").format(name)
        counts = self.connection.execute(
            sql.SQL("SELECT {}, count(*) FROM {} WHERE {} IS NOT NULL GROUP BY 1 ORDER BY 2 DESC").format(
                dimensions, table.identifier, name
            )
        ).fetchall()
        if len(counts) > 1:
            several = ", ".join(f"{count:,} of {width}" for width, count in counts)
            raise BadValueError(
                f"{self.name} holds vectors of several dimensions ({several}), which no search compares"
            )

        text = sql.SQL("NULL::text") if self.text is None else sql.SQL("{}::text").format(sql.Identifier(self.text))
        batches = list(read_sample(self.connection, self.full, max_rows, [self._key, text]))
        vectors = np.concatenate([np.empty((0, self.full.dimensions), np.float32), *(rows for rows, _ in batches)])
        others = [values for _, rows in batches for values in rows]
        texts = None if self.text is None else [values[1] for values in others]
        return Rows([values[0] for values in others], vectors, texts, sum(count for _, count in counts))

    def replace(self, changes: Sequence[Change]) -> int:
        """Replace vectors of rows that still have the old one, in one statement. Return the number of rows written.

        Raises:
            BadValueError: if the table has no primary key.
        """
        if not self.full.table.key:
            raise BadValueError(f"{self.full.table.name} has no primary key by which rows are found again")
        kind, column = sql.SQL(self.full.kind), sql.Identifier(self.full.column.name)
        with self.connection.transaction():
            create = sql.SQL("CREATE TEMP TABLE {} (lathe_row text, lathe_old {}, lathe_new {}) ON COMMIT DROP")
            self.connection.execute(create.format(CHANGES, kind, kind))
            with self.connection.cursor() as cursor:
                with cursor.copy(sql.SQL("COPY {} FROM STDIN").format(CHANGES)) as copy:
                    for row, old, new in changes:
                        copy.write_row((row, str(old), str(new)))
                cursor.execute(
                    sql.SQL(
                        "UPDATE {} AS t SET {} = lathe_new FROM {} WHERE {} = lathe_row AND t.{} = lathe_old"
                    ).format(self.full.table.name.identifier, column, CHANGES, self._key, column)
                )
                return cursor.rowcount

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Search as the planner chooses, or through the index with another number of candidates if one is given.

        With more candidates, the planner would compare all rows of a small table, which the index gets no credit for.
        """
        settings = {} if effort is None else {self.effort_name: effort, "enable_seqscan": "off"}
        return self._ask(queries, k, self.expression, self.operator, settings)

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all rows, by the indexed expression, or with `full` by the column."""
        settings = {"enable_indexscan": "off", "enable_seqscan": "on"}
        if full:
            return self._ask(queries, k, self.column, OPERATORS[self.metric], settings)
        return self._ask(queries, k, self.expression, self.operator, settings)

    def _ask(self, queries: FloatArray, k: int, expression: str, operator: str, settings: dict[str, Any]) -> Hits:
        # The query goes through the expression of the rows, in a subquery that gives it the column's name.
        statement = sql.SQL(
            "SELECT {key}, {expression} {operator} (SELECT {expression} FROM (SELECT %s::{kind} AS {column}) AS query) "
            "FROM {table} ORDER BY 2 LIMIT {k}"
        ).format(
            key=self._key,
            expression=sql.SQL(expression),  # from the catalogue
            operator=sql.SQL(operator),
            kind=sql.SQL(self.full.kind),
            column=sql.SQL(self.column),
            table=self.full.table.name.identifier,
            k=sql.Literal(k),
        )

        def ask(query: list[float]) -> list[tuple[str, float]]:
            # A prepared statement would keep the plan that other settings chose.
            rows = self.connection.execute(statement, (str(query),), prepare=False).fetchall()
            return [(row[0], -row[1]) for row in rows]

        with self.connection.transaction():
            for name, value in settings.items():
                self.connection.execute("SELECT set_config(%s, %s, true)", (name, str(value)))
            return ask_each(queries, ask)
