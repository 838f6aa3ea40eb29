"""Comparison of two suites under the same encoders: all analyses that tell whether they are different domains."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lathe.training.comparison import Array
from lathe.training.errors import EvaluationError
from lathe.training.evaluation.report import list_problems
from lathe.training.evaluation.suites import Entry, Suite
from lathe.training.evaluation.worker import Job, Workers
from lathe.transforms.progress import Progress
from research.domains.blocks import build_blocks, list_left_out
from research.domains.characteristics import (
    CountTokens,
    average_characteristics,
    measure_characteristics,
)
from research.domains.comparison import Comparison, DataSetTexts
from research.domains.pairwise import compare_encoders
from research.domains.parser import find_parser
from research.domains.ranking import RankCorrelation, compare_rankings
from research.domains.reliability import measure_split_half
from research.domains.samples import StoredVectors
from research.domains.similarity import SimilarityMap, build_similarity_map
from research.domains.tokens import find_token_counter
from research.domains.variance import Cell, TwoWay, analyse_one_way, analyse_two_way
from research.domains.work import bootstrap_scores, sample_texts_of
from research.encoders import BAG_OF_WORDS
from research.fitted_methods.evaluation import FittedResults
from research.paper_findings.grid import Grid

RunJobs = Callable[[Sequence[Job]], Iterator[tuple[int, Any]]]
"""Function that runs jobs in worker processes and yields index and result of each as it finishes; see `Workers.run`."""
ALL_TYPES = "all types"
"""Name of the row for the mean over all common task types."""
SIDES = (0, 1)
"""Indices of the two suites."""
FROM_MTEB = "mteb reads its own tasks itself and gives no scores of single examples"
"""Reason why mteb's own tasks have no bootstrap samples."""
NOT_DRAWN = f"no data set of one suite is complete and in a layout of Lathe; {FROM_MTEB}"
"""Problem of a task type for which no bootstrap samples can be drawn."""


def require_different(first: Suite, second: Suite) -> tuple[str, ...]:
    """Return the names of the data sets that are in both suites, as the first suite calls them.

    Data sets are compared by digest.

    Raises:
        EvaluationError: if the two suites hold exactly the same data sets.
    """
    digests = [{entry.digest(): entry.name for entry in suite.entries} for suite in (first, second)]
    if digests[0].keys() == digests[1].keys():
        raise EvaluationError(
            f"{first.written} and {second.written} hold the same data sets; --against takes another suite"
        )
    return tuple(name for digest, name in digests[0].items() if digest in digests[1])


def compare(first: FittedResults, second: FittedResults, on_progress: Progress) -> Comparison:
    """Compare the suites of two evaluations by the same encoders, and return all analyses.

    The bootstrap and the reading of texts run in worker processes.
    An encoder or data set that fails is named in `Comparison.problems` and left out; the rest of the comparison goes
    on.

    Args:
        first: results of evaluating the first suite; its number of processes is used.
        second: results of evaluating the second suite.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        EvaluationError: if the suites are the same.
    """
    with Workers(first.request.processes) as workers:
        return DomainComparison(first, second, on_progress, workers.run).run()


def make_titles_distinct(first: Suite, second: Suite) -> tuple[str, str]:
    """Return the titles of the two suites, with "(1)" and "(2)" appended if they are equal."""
    if first.title != second.title:
        return first.title, second.title
    return f"{first.title} (1)", f"{second.title} (2)"


class DomainComparison:
    """Comparison of two evaluated suites: the scores and data sets of both, and the analyses that `run` makes of them.

    Construction raises `EvaluationError` if the suites hold the same data sets. `side` is the index of a suite, 0 or 1.

    Attributes:
        shared: names of the data sets that are in both suites.
        results: results of both evaluations.
        titles: titles of the suites, made different.
        grids: scores of both evaluations by encoder, method and task.
        blocks: score matrices by task type, for both suites.
        entries: data sets as they were evaluated, for both suites.
        problems: messages about what was left out; grows during `run`.
    """

    def __init__(self, first: FittedResults, second: FittedResults, on_progress: Progress, run_jobs: RunJobs) -> None:
        self.shared = require_different(first.request.suite, second.request.suite)
        self.results = (first, second)
        self.titles = make_titles_distinct(first.request.suite, second.request.suite)
        self.progress = on_progress
        self.run_jobs = run_jobs
        self.grids = (Grid(first), Grid(second))
        self.blocks = (build_blocks(self.grids[0]), build_blocks(self.grids[1]))
        self.entries = tuple(_list_entries(results) for results in self.results)
        self.problems: list[str] = [
            *(f"{self.titles[side]}: {line}" for side in SIDES for line in list_problems(self.results[side])),
            *(
                line
                for title, some in zip(self.titles, self.blocks, strict=True)
                for line in list_left_out(title, some)
            ),
        ]

    def run(self) -> Comparison:
        """Run all analyses, with progress reports, and return them.

        These are rank correlations, analyses of variance, paired tests of encoders, measures of texts, and cosines of
        data sets.
        """
        common = [type_ for type_ in self.blocks[0] if type_ in self.blocks[1]]
        two_ways = self.analyse_variance(common)
        texts, similarity, tokenizer = self.measure_texts()
        sides = [[one.characteristics for one in texts if one.suite == side] for side in SIDES]
        averages = [average_characteristics(some) if some else None for some in sides]
        blocks = [(side, block) for side in SIDES for block in self.blocks[side].values()]
        return Comparison(
            titles=self.titles,
            data_sets=(len(self.grids[0].tasks), len(self.grids[1].tasks)),
            encoders=tuple(encoder for encoder in self.grids[0].encoders if encoder in self.grids[1].encoders),
            types=(tuple(self.blocks[0]), tuple(self.blocks[1])),
            rankings=self.correlate_rankings(common),
            two_ways=two_ways,
            one_ways=[analyse_one_way(side, block.type, block.scores) for side, block in blocks],
            tests=[test for side, block in blocks for test in compare_encoders(side, block)],
            texts=texts,
            suite_texts=(averages[0], averages[1]),
            tokenizer=tokenizer,
            similarity=similarity,
            shared=self.shared,
            problems=self.problems,
        )

    def correlate_rankings(self, common: Sequence[str]) -> list[RankCorrelation]:
        """Compute the rank correlation of the encoders between the suites for each common task type.

        If two or more types have scores in both suites, one for the mean over these types is added. `within` is set to
        the split-half ρ of each suite, unless the correlation has no ρ.

        Args:
            common: task types that have scores in both suites.
        """
        pairs = {type_: (self.blocks[0][type_].means, self.blocks[1][type_].means) for type_ in common}
        found = [self.add_split_half(compare_rankings(type_, *pair), [type_]) for type_, pair in pairs.items()]
        usable = {type_: pair for type_, pair in pairs.items() if all(pair)}
        if len(usable) > 1:
            first, second = (_average_over_types([pair[side] for pair in usable.values()]) for side in SIDES)
            found.append(self.add_split_half(compare_rankings(ALL_TYPES, first, second), list(usable)))
        return found

    def add_split_half(self, one: RankCorrelation, types: Sequence[str]) -> RankCorrelation:
        """Return the correlation with `within` set to the split-half ρ of each suite.

        Unchanged if it has no ρ.

        Args:
            one: correlation between the suites.
            types: task types whose data sets are halved.
        """
        if one.rho is None:
            return one
        first, second = (
            measure_split_half([self.blocks[side][type_].select_scores(one.encoders) for type_ in types])
            for side in SIDES
        )
        return replace(one, within=(first, second))

    def analyse_variance(self, common: Sequence[str]) -> list[TwoWay]:
        """Score bootstrap samples for each encoder and suite, and analyse the scores' variance for each task type.

        The samples are drawn in worker processes.
        An encoder whose samples fail is left out and added to `problems`; a type without samples gets a result with a
        problem.

        Args:
            common: task types that have scores in both suites.
        """
        pools = {(type_, side): self.select_pool(type_, side) for type_ in common for side in SIDES}
        cells = [
            (type_, side, encoder)
            for type_, side in pools
            if pools[type_, 0] and pools[type_, 1]
            for encoder in self.blocks[side][type_].encoders
        ]
        jobs: list[Job] = [
            (bootstrap_scores, (pools[type_, side], self.locate_vectors(side, encoder)))
            for type_, side, encoder in cells
        ]
        found: dict[tuple[str, int, str], tuple[int, Array]] = {}
        for done, (index, result) in enumerate(self.run_jobs(jobs), 1):
            type_, side, encoder = cells[index]
            if isinstance(result, Exception):
                self.problems.append(f"{self.titles[side]}: no samples of {type_} for {encoder}: {result}")
            else:
                found[cells[index]] = result
            self.progress(0.5 * done / len(jobs), f"samples of {type_} for {encoder}")
        ordered = {cell: found[cell] for cell in cells if cell in found}  # not as processes finish
        return [_run_two_way(type_, ordered, any(cell[0] == type_ for cell in cells)) for type_ in common]

    def select_pool(self, type_: str, side: int) -> list[Entry]:
        """Return the data sets of a task type, complete for all encoders, that have scores of single examples.

        mteb's own tasks have none; they are left out and, if other data sets remain, named in `problems`.
        """
        complete = [entry for entry in self.entries[side] if entry.name in self.blocks[side][type_].tasks]
        usable = [entry for entry in complete if entry.kind != "mteb"]
        if 0 < len(usable) < len(complete):
            left = ", ".join(entry.name for entry in complete if entry.kind == "mteb")
            self.problems.append(f"{self.titles[side]}: {left}: not in the samples of {type_}, as {FROM_MTEB}")
        return usable

    def locate_vectors(self, side: int, encoder: str) -> StoredVectors:
        """Return the location and properties of an encoder's stored vectors in one suite's evaluation."""
        member, out = self.grids[side].encoders[encoder].member, self.results[side].request.out
        return member, out / "vectors" / member.output

    def measure_texts(self) -> tuple[list[DataSetTexts], SimilarityMap | None, str | None]:
        """Measure the texts of each data set, and the cosines between the data sets under the first dense encoder.

        Returns the measures in order of suite and data set, the cosines or None, and the name of the encoder whose
        tokenizer counted the tokens, or None. The texts are read in worker processes; a data set that cannot be read is
        added to `problems`.
        """
        dense = next((name for name in self.grids[0].encoders if name != BAG_OF_WORDS), None)
        name, count_tokens = self.find_tokenizer()
        describing = partial(measure_characteristics, count_tokens=count_tokens, parse=find_parser())
        places = [(side, entry) for side in SIDES for entry in self.entries[side] if self.was_read(side, entry)]
        raws = [
            None if dense is None or dense not in self.grids[side].encoders else self.locate_vectors(side, dense)
            for side in SIDES
        ]
        jobs: list[Job] = [(sample_texts_of, (entry, raws[side])) for side, entry in places]
        found: dict[int, DataSetTexts] = {}
        means: dict[int, Array] = {}
        for done, (index, result) in enumerate(self.run_jobs(jobs), 1):
            side, entry = places[index]
            if isinstance(result, Exception):
                self.problems.append(f"{self.titles[side]}: the texts of {entry.name} are left out: {result}")
                continue
            language = self.grids[side].tasks[entry.name].language
            one = describing(result.texts, language)
            found[index] = DataSetTexts(side, entry.name, language, one)
            if result.mean is not None:
                means[index] = result.mean
            self.progress(0.5 + 0.5 * done / len(jobs), f"texts of {entry.name}")
        ordered = [found[index] for index in sorted(found)]
        return ordered, _map_data_sets(dense, found, means), name

    def find_tokenizer(self) -> tuple[str | None, CountTokens | None]:
        """Return name and token counter of the first encoder with a local tokenizer file, else (None, None)."""
        for wanted in self.results[0].request.encoders:
            if wanted.spec is not None and (count := find_token_counter(wanted.spec)) is not None:
                return wanted.spec.name, count
        return None, None

    def was_read(self, side: int, entry: Entry) -> bool:
        """Return whether the data set could be read when its suite was evaluated."""
        return entry.name in self.grids[side].tasks


def _list_entries(results: FittedResults) -> list[Entry]:
    """Return the data sets of an evaluation's suite as they were evaluated, with the row limit."""
    return [replace(entry, limit=results.request.limit) for entry in results.request.suite.entries]


def _average_over_types(means: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over task types of each encoder that has a mean score in every type, by encoder."""
    complete = [encoder for encoder in means[0] if all(encoder in one for one in means)]
    return {encoder: float(np.mean([one[encoder] for one in means])) for encoder in complete}


def _run_two_way(type_: str, found: Mapping[tuple[str, int, str], tuple[int, Array]], drawn: bool) -> TwoWay:
    """Run the two-way analysis of variance of one task type.

    Without samples, return a result with a problem.

    Args:
        type_: task type.
        found: number of pooled examples and sample scores, by task type, suite and encoder.
        drawn: whether samples of the type were attempted.
    """
    if not drawn:
        return TwoWay(type_, problem=NOT_DRAWN)
    scores: dict[Cell, Array] = {
        (encoder, side): some for (of, side, encoder), (_, some) in found.items() if of == type_
    }
    sizes = {side: size for (of, side, _), (size, _) in found.items() if of == type_}
    return analyse_two_way(type_, scores, (sizes.get(0, 0), sizes.get(1, 0)))


def _map_data_sets(
    encoder: str | None, found: Mapping[int, DataSetTexts], means: Mapping[int, Array]
) -> SimilarityMap | None:
    """Compute the cosines between data sets that have a mean vector.

    Args:
        encoder: name of the dense encoder, or None.
        found: texts of the data sets, by job index.
        means: mean vectors `(d,)`, by job index.

    Returns:
        None for fewer than 2 or no encoder.
    """
    if encoder is None or len(means) < 2:
        return None
    ordered = sorted(means)
    names, suites = [found[index].name for index in ordered], [found[index].suite for index in ordered]
    return build_similarity_map(encoder, names, suites, np.stack([means[index] for index in ordered]))
