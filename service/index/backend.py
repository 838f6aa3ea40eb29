"""Which backend keeps the indexes: the state folder, or a Milvus."""

from service.home import Home
from service.index.index import Texts
from service.index.indexes import Indexes
from service.index.milvus.indexes import MilvusIndexes
from service.index.protocol import SearchIndexes
from service.settings import Settings


def open_indexes(settings: Settings, home: Home, encode: Texts) -> SearchIndexes:
    """The indexes that the settings name.

    Args:
        settings: with or without `index_url`.
        home: the state folder.
        encode: encodes texts by the encoder that an index names.
    """
    if settings.index_url:
        return MilvusIndexes(settings.index_url, settings.index_token)
    return Indexes(home.indexes, settings.threads, settings.job_threads, encode)
