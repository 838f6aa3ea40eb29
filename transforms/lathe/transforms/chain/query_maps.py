"""The part of a chain that maps queries while the documents are still what they were."""

from itertools import takewhile

from lathe.transforms.chain.chain import Chain


def leading_query_maps(chain: Chain) -> Chain | None:
    """Return the maps of queries of the steps before the first that changes documents, as a chain; None if none.

    Such maps change what is looked for. What follows approximates the scores of their outputs with the documents, so
    a search that rescores candidates by the documents' original vectors compares these outputs with them.
    """
    found = [step.query_map() for step in takewhile(lambda step: step.queries_only, chain.float_steps)]
    return Chain(found, normalize=False) if found else None
