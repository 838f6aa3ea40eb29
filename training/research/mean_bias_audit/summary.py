"""Summary of an audit in sentences."""

from collections.abc import Iterator

import numpy as np

from training.research.mean_bias_audit.findings import AuditFindings
from training.research.mean_bias_audit.means import MAX_RUNS, Direction, MeanPoint, Norms
from training.research.mean_bias_audit.profile import Profile, RandomControl
from training.research.mean_bias_audit.stored_audit import Audit, Languages, Prompts
from training.research.mean_bias_audit.texts import MIN_LANGUAGE_TEXTS
from transforms.linear import MIN_MEAN_NORM

NEAR = 0.99
"""Cosine from which on the mean of a sample counts as having the direction of the mean of all vectors."""
MIN_OUTLIER_TASKS = 6
"""Minimum number of tasks for outliers: of fewer, none can lie two standard deviations from the mean, since the largest
possible distance is (n − 1)/√n."""


def summarize_audit(findings: AuditFindings) -> list[str]:
    """Return all sentences of an audit: on each encoder's vectors, then on random directions and on R2's outliers."""
    found = [sentence for name, audit in findings.encoders.items() for sentence in _encoder_sentences(name, audit)]
    found += [_random_sentence(control) for control in findings.random_controls]
    return [*dict.fromkeys(found), *_profile_sentences(findings.profile)]  # what is said of the suite is said once


def _encoder_sentences(name: str, audit: Audit) -> Iterator[str]:
    """Yield the sentences on one encoder's vectors, and on parts that could not be measured."""
    if audit.norms is not None:
        yield from _norm_sentences(name, audit.norms)
    if audit.corpus is not None:
        yield from _mean_sentences(name, audit.corpus.direction)
        yield from _growth_sentences(name, audit.corpus.growth)
    if audit.languages is not None:
        yield from _language_sentences(name, audit.languages)
    yield from _prompt_sentences(name, audit)
    yield from (f"{name}: {problem}." for problem in audit.problems)


def _norm_sentences(name: str, norms: Norms) -> Iterator[str]:
    """Yield sentences on whether the encoder returns unit vectors, and on zero vectors."""
    spread = f"norm {norms.mean:.3f} ± {norms.std:.3f} over {norms.texts} texts"
    if norms.unit == 1:
        yield f"{name} gives unit vectors ({spread})."
    else:
        lengths = f"from {norms.min:.3f} to {norms.max:.3f}, {100 * norms.unit:.0f} % of them unit"
        yield f"{name} gives vectors that are not unit ({spread}, {lengths}); they are evaluated at unit length."
    if norms.zero_rows:
        yield f"{name} gives zero vectors for {norms.zero_rows} of {norms.texts} texts of the suite."


def _mean_sentences(name: str, found: Direction) -> Iterator[str]:
    """Yield sentences on whether there is a mean direction, and on its cosine to the first principal component."""
    if found.zero_rows:
        yield f"{name} gives zero vectors for {found.zero_rows:,} of {found.rows:,} sentences; they count as zeros."
    if found.uncentered is None:
        yield f"The vectors of {name} have no common direction: their mean is zero."
        return
    if found.centered is None:
        yield f"{name} gives every sentence the same vector: nothing varies, so there is no principal component."
        return
    more = "more" if found.mean_norm > MIN_MEAN_NORM * found.noise_floor else "no more"
    yield (
        f"‖μ‖ of {name} is {found.mean_norm:.3f} over {found.rows:,} sentences, {more} than chance "
        f"({found.noise_floor:.3f}); the first principal component lies at |cos| = {found.uncentered:.3f} to μ before "
        f"centring and {found.centered:.3f} after."
    )


def _growth_sentences(name: str, growth: tuple[MeanPoint, ...]) -> Iterator[str]:
    """Yield sentences on how many vectors are enough for the mean direction, and on the error of consecutive rows."""
    near = next((point for point in growth[:-1] if point.cosine is not None and point.cosine >= NEAR), None)
    ratios = [point.ratio for point in growth[:-1] if point.ratio is not None]
    if ratios and growth[-1].cosine is not None:
        told = f"No smaller sample gives the mean direction of {name} to a cosine of {NEAR}"
        if near is not None:
            told = f"{near.n:,} sentences give the mean direction of {name} to a cosine of {near.cosine:.3f}"
        yield (
            f"{told}; from {growth[0].n} to {growth[-2].n:,} sentences, ‖μ_n‖² is {min(ratios):.2f} to "
            f"{max(ratios):.2f} times ‖μ‖² + tr Σ / n, as it must be where they are drawn at random."
        )
    several = [point for point in growth if point.consecutive is not None and growth[-1].n >= MAX_RUNS * point.n]
    if several:
        most = several[-1]
        yield (
            f"The mean of {most.n:,} consecutive sentences of the corpus under {name} has {most.consecutive:.2f} times "
            "the squared error of that of as many random ones."
        )


def _language_sentences(name: str, found: Languages) -> Iterator[str]:
    """Yield sentences on left-out languages, and on how the mean differs between languages."""
    few = ", ".join(f"{language} ({count})" for language, count in found.few.items())
    if few:
        yield f"Languages with fewer than {MIN_LANGUAGE_TEXTS} texts are left out of the means by language: {few}."
    if found.unclear:
        yield f"Data sets of no single language are left out of the means by language: {', '.join(found.unclear)}."
    if len(found.means) < 2:
        only = f"one language with enough texts, {found.means[0].language}" if found.means else "no such language"
        yield f"The mean of {name} cannot be compared across languages: the suite has {only}."
        return
    first, last = found.means[0], found.means[-1]
    turned = "–" if first.running_cosine is None else f"{first.running_cosine:.3f}{_format_angle(first.running_cosine)}"
    cosines = [(one.cosine, one.language) for one in found.means[1:] if one.cosine is not None]
    each = f"; the farthest from it is {min(cosines)[1]}, at {min(cosines)[0]:.3f}" if cosines else ""
    yield (
        f"‖μ‖ of {name} is {first.norm:.3f} in {first.language} and {last.running_norm:.3f} over all "
        f"{len(found.means)} languages of {found.texts:,} texts each, at a cosine of {turned}{each}."
    )


def _prompt_sentences(name: str, audit: Audit) -> Iterator[str]:
    """Yield the sentence on the prompt that moves the mean most, or that the encoder takes no prompts."""
    if audit.prompts is None:
        if not audit.problems:
            yield f"{name} takes no prompts: its means by prompt are not measured."
        return
    yield from _measured_prompt_sentences(name, audit.prompts)


def _measured_prompt_sentences(name: str, found: Prompts) -> Iterator[str]:
    """Yield a sentence on the prompt whose mean has the lowest cosine to that without a prompt, if one is known."""
    known = [(one.cosine, one) for one in found.means if one.cosine is not None]
    if not known:
        return
    least, farthest = min(known, key=lambda item: item[0])
    generic = f"{name} has no prompts of its own; of generic ones, {farthest.prompt!r}"
    yield (
        f"{generic if found.generic else f'Of the prompts of {name}, {farthest.name}'} moves its mean most: ‖μ‖ is "
        f"{farthest.norm:.3f} with it and {found.plain_norm:.3f} without, at a cosine of "
        f"{least:.3f}{_format_angle(least)}."
    )


def _random_sentence(found: RandomControl) -> str:
    """Return a sentence on how much removing a random direction changes an encoder's score, over its seeds."""
    values = list(found.differences.values())
    spread = "" if found.std is None else f" ± {found.std:.3f} among {len(values)} seeds"
    r2 = "" if found.r2 is None else f"; R2 {found.r2:+.3f}"
    return (
        f"A random direction changes the score of {found.encoder} by {found.mean:+.3f} points{spread}, from "
        f"{min(values):+.3f} to {max(values):+.3f}{r2}."
    )


def _profile_sentences(found: Profile) -> Iterator[str]:
    """Yield sentences on the share of tasks on which R2's difference is an outlier, and on the most frequent one."""
    if not found.encoders:
        return
    able = [one for one in found.encoders if one.tasks >= MIN_OUTLIER_TASKS]
    if not able:
        yield f"R2 cannot stand out anywhere: that takes {MIN_OUTLIER_TASKS} tasks of an encoder at least."
        return
    up, down = np.mean([one.up for one in able]), np.mean([one.down for one in able])
    yield (
        f"R2's differences lie more than two standard deviations above an encoder's own mean on {100 * up:.1f} % of "
        f"its tasks and below on {100 * down:.1f} %, on average over {len(able)} encoders (the mean-bias paper: "
        "2 to 5 % and 0 to 3 %)."
    )
    for name, sign in (("up", "above"), ("down", "below")):
        task = max(found.tasks, key=lambda one: getattr(one, name))
        share = getattr(task, name)
        if share > 0:
            yield f"The task that is {sign} on most encoders is {task.task}, on {100 * share:.0f} % of {task.encoders}."


def _format_angle(cosine: float) -> str:
    """Format a cosine as an angle in degrees, in parentheses with a leading space."""
    return f" ({np.degrees(np.arccos(np.clip(cosine, -1, 1))):.1f}°)"
