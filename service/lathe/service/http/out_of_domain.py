"""How far a request's vectors lie from those that their chain was fitted on, answered in a header if asked for."""

from dataclasses import replace

from starlette.requests import Request

from lathe.service.encoders.embedder import Answer
from lathe.service.errors import BadValueError
from lathe.service.http.openapi import OUT_OF_DOMAIN
from lathe.transforms.errors import ArtifactError

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

DRIFT_PARAMETERS = [
    {
        "name": name,
        "in": location,
        "schema": {"type": "boolean"},
        "description": f"whether to answer {OUT_OF_DOMAIN}",
    }
    for name, location in (("x-drift", "header"), ("drift", "query"))
]
"""OpenAPI parameters that `wants_out_of_domain` reads."""


def wants_out_of_domain(request: Request) -> bool:
    """Return whether the request asks for the header `x-out-of-domain`, by its header `x-drift` or query `drift`.

    Raises:
        BadValueError: if the value is neither true nor false.
    """
    value = request.headers.get("x-drift")
    if value is None:
        value = request.query_params.get("drift", "false") if request.scope["query_string"] else "false"
    if value.lower() not in BOOLEANS:
        raise BadValueError(f"drift must be true or false, not {value[:40]!r}", param="drift")
    return BOOLEANS[value.lower()]


def measure_out_of_domain(answer: Answer) -> Answer:
    """Return a copy of the answer with `out_of_domain`: how far its vectors lie from the rows of the chain's fit.

    For each vector before the chain, it takes the fraction of held-out rows that lie nearer to the fitted mean, by
    Mahalanobis distance; their mean is text such as "0.500". It is "unknown" without a chain, if the chain has no
    readable fit distribution, or if nothing observes live vectors, as the vectors before the chain are not kept then.
    """
    distribution = answer.target.loaded.fit_distribution if answer.target.loaded else None
    if answer.raw is None or distribution is None or isinstance(distribution, ArtifactError):
        return replace(answer, out_of_domain="unknown")
    gaussian = distribution.gaussian
    ranks = distribution.quantile_ranks(gaussian.score(gaussian.standardize(answer.raw)))
    return replace(answer, out_of_domain=f"{ranks.mean():.3f}")
