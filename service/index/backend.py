"""Choice of the backend that stores the indexes: the state folder or Milvus."""

from service.home import Home
from service.index.index import Texts
from service.index.indexes import Indexes
from service.index.milvus.indexes import MilvusIndexes
from service.index.protocol import SearchIndexes
from service.settings import Settings


def open_indexes(settings: Settings, home: Home, encode: Texts) -> SearchIndexes:
    """Return the indexes of the backend that the settings choose: Milvus if `index_url` is set, else the state folder.

    Args:
        settings: settings of the server.
        home: state folder.
        encode: encodes texts with the encoder that an index names.
    """
    if settings.index_url:
        return MilvusIndexes(settings.index_url, settings.index_token)
    return Indexes(home.indexes, settings.threads, settings.job_threads, encode)
