"""Headers of the pages that the service itself shows."""

from collections.abc import Mapping


def page_headers(sources: Mapping[str, str], *directives: str) -> dict[str, str]:
    """Return headers by which a page loads what it names and nothing else, and no other page shows it in a frame.

    Args:
        sources: where each kind of resource may come from, as a content security policy writes it.
        directives: what else the policy says.
    """
    policy = [f"{kind}-src {allowed}" for kind, allowed in sources.items()]
    policy += [f"{what} 'none'" for what in ("base-uri", "form-action", "frame-ancestors")]
    return {
        "content-security-policy": "; ".join([*policy, *directives]),
        "x-frame-options": "DENY",  # what `frame-ancestors` says, for browsers that do not read it
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
