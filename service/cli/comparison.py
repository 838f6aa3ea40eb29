"""How a version differs from the one that rows were added to, for reading."""

from typing import Any

MEASURES = ("local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress")


def differences(certificate: dict[str, Any]) -> list[str]:
    """The measures of a certificate less those of the version it is compared to, as lines; none if it is to none."""
    was = certificate.get("compared_to")
    if was is None:
        return []
    columns = [(certificate, was), *((certificate["foreign"][name], was["foreign"][name]) for name in was["foreign"])]
    lines = ["", f"less {was['chain']} on the same rows"]
    for measure in MEASURES:
        values = [difference(now[measure], then[measure]) for now, then in columns]
        lines.append(f"{measure:24}{values[0]:>10}" + "".join(f"{value:>14}" for value in values[1:]))
    for measure in ("mean_norm", "isoscore"):
        lines.append(f"{measure:24}{difference(certificate[measure]['after'], was[measure]['after']):>10}")
    return lines


def difference(now: float | None, then: float | None) -> str:
    """Now less then, with its sign, in four places."""
    return "–" if now is None or then is None else f"{now - then:+.4f}"
