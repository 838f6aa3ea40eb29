"""Security headers of the HTML pages that the service serves."""

from collections.abc import Mapping


def build_page_headers(sources: Mapping[str, str], *directives: str) -> dict[str, str]:
    """Return security headers for an HTML page, which may then load resources only from these sources.

    No other page may frame it.

    Args:
        sources: allowed sources of each kind of resource, in the syntax of a content security policy.
        directives: further directives of the policy.
    """
    policy = [f"{kind}-src {allowed}" for kind, allowed in sources.items()]
    policy += [f"{name} 'none'" for name in ("base-uri", "form-action", "frame-ancestors")]
    return {
        "content-security-policy": "; ".join([*policy, *directives]),
        "x-frame-options": "DENY",  # what `frame-ancestors` says, for browsers that do not read it
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
