import numpy as np
import pytest

from lathe.training.errors import DataSetError, JobError
from lathe.training.finetuning.job import DataSettings, TargetSettings, TrainingJob
from lathe.training.finetuning.mixture_builder import read_sources
from lathe.training.finetuning.opening import open_target
from lathe.training.finetuning.regularizers.regularizer import NoRegularizer, RegularizerSettings
from lathe.training.finetuning.regularizers.reze import Distillation, Reze

TARGET = [{"anchor": "Known question", "positive": "known  answer"}, {"anchor": "other", "positive": "else"}]
SHARING = [
    {"anchor": "new", "positive": "free"},
    {"anchor": "  KNOWN\tquestion ", "positive": "free"},
    {"anchor": "new", "positive": "Known answer"},
]


def pairs(name, count):
    return [{"anchor": f"{name} asks {n}", "positive": f"{name} says {n}"} for n in range(count)]


def open_left_out(**target):
    """Open a target with the given settings."""
    return open_target(TargetSettings(**target))


@pytest.fixture
def written(tmp_path, write_data_set):
    """Return a function that writes data sets in one folder."""

    def write(name, rows, task="pairs", split="train", **files):
        return write_data_set(tmp_path / "data" / name, {"task": task}, {f"{split}.jsonl": rows} | files)

    return write


@pytest.fixture
def target(tmp_path, write_data_set):
    """Return an opened target with a test that other sources share texts with."""
    return open_target(
        TargetSettings(folder=write_data_set(tmp_path / "target", {"task": "pairs"}, {"test.jsonl": TARGET}))
    )


def settings(*sources, **given):
    named = [source if isinstance(source, dict) else {"folder": source} for source in sources]
    return DataSettings.model_validate({"sources": named} | given)


def texts(mixture):
    return list(zip(mixture.anchors, mixture.positives, strict=True))


def reports(mixture):
    return {report.name: report for report in mixture.reports}


def test_a_cap_samples_pairs_by_the_seed_in_their_order(written):
    every = pairs("a", 50)
    folder = written("a", every)
    first, again, other = (read_sources(settings(folder, cap=10, seed=seed)).build() for seed in (1, 1, 2))
    assert texts(first) == texts(again) != texts(other)
    assert texts(first) == [
        pair for pair in ((row["anchor"], row["positive"]) for row in every) if pair in texts(first)
    ]
    assert len(set(texts(first))) == 10
    report = reports(first)["a"]
    assert (report.found, report.kept, report.dropped) == (50, 10, {"over the cap": 40})


def test_a_sources_own_cap_applies_and_its_sample_does_not_depend_on_other_sources(written):
    a, b = written("a", pairs("a", 20)), written("b", pairs("b", 20))
    both = read_sources(settings({"folder": a, "cap": 3}, b, cap=5)).build()
    assert np.bincount(both.sources).tolist() == [3, 5]
    assert texts(both)[3:] == texts(read_sources(settings(b, cap=5)).build())
    assert len(read_sources(settings(a, cap=20)).build()) == len(read_sources(settings(a, cap=100)).build()) == 20


def test_duplicate_pairs_are_dropped_before_the_cap(written):
    rows = [*pairs("a", 4), *pairs("a", 3), {"anchor": "a asks 0", "positive": "another answer"}]
    mixture = read_sources(settings(written("a", rows), cap=5)).build()
    assert texts(mixture) == [(row["anchor"], row["positive"]) for row in [*pairs("a", 4), rows[-1]]]
    assert reports(mixture)["a"].dropped == {"duplicate pair": 3}


def test_texts_of_the_targets_test_are_refused_dropped_or_allowed_by_the_setting(written, target):
    folder = written("a", SHARING)
    with pytest.raises(JobError, match=r"sources share texts with the test set of target: a \(2 pairs\)"):
        read_sources(settings(folder), target).build()
    dropped = read_sources(settings(folder, overlap="drop"), target).build()
    assert texts(dropped) == [("new", "free")]
    assert reports(dropped)["a"].dropped == {"shares a text with the target": 2}
    allowed = read_sources(settings(folder, overlap="allow"), target).build()
    assert len(allowed) == 3
    assert reports(dropped)["a"].shared == reports(allowed)["a"].shared == 2
    assert len(read_sources(settings(folder)).build()) == 3


def test_overlap_is_found_before_prompts_are_added_and_in_each_text_of_a_cluster(written, target):
    rows = [{"text": text, "label": "x"} for text in ("fresh", "OTHER", "new", "newer", "newest")]
    source = {"folder": written("a", rows, "clustering"), "prompts": {"anchor": "topic: "}, "texts_per_cluster": 2}
    mixture = read_sources(settings(source, overlap="drop"), target).build()
    assert texts(mixture) == [("topic: new\nnewer", "x"), ("topic: newest", "x")]


def test_overlap_with_titles_of_documents_and_with_inputs_of_a_classification_is_found(
    written, write_data_set, tmp_path
):
    folder = write_data_set(
        tmp_path / "search",
        {"task": "retrieval"},
        {"corpus.jsonl": [{"_id": "d", "title": "T", "text": "one"}], "queries.jsonl": [{"_id": "q", "text": "who"}]},
        {"test": [("q", "d", 1)]},
    )
    rows = [{"anchor": "x", "positive": "t ONE"}, {"anchor": "Who", "positive": "y"}, {"anchor": "x", "positive": "y"}]
    mixture = read_sources(settings(written("a", rows), overlap="drop"), open_left_out(folder=folder)).build()
    assert texts(mixture) == [("x", "y")]
    labelled = [{"text": "p", "label": "good"}, {"text": "q", "label": "bad"}]
    classes = write_data_set(
        tmp_path / "classes", {"task": "classification"}, {"train.jsonl": labelled, "test.jsonl": labelled}
    )
    rows = [{"text": "P", "label": "good"}, {"text": "r", "label": "good"}]
    mixture = read_sources(
        settings(written("b", rows, "classification"), overlap="drop"), open_left_out(folder=classes)
    ).build()
    assert texts(mixture) == [("r", "good")]


def test_a_source_with_the_targets_folder_is_left_out_and_a_missing_one_refused(written, tmp_path):
    with pytest.raises(JobError, match="there is no folder"):
        open_left_out(folder=tmp_path / "none")
    written("a", pairs("a", 3))
    folder = written("b", pairs("b", 2), **{"test.jsonl": TARGET})
    mixture = read_sources(
        settings(tmp_path / "data"), open_left_out(folder=tmp_path / "data" / "." / "b", name="mine")
    ).build()
    assert mixture.names == ["a"]
    assert reports(mixture)["b"].problem == "the target, left out"
    assert read_sources(settings(folder)).build().names == ["b"]


def test_excluded_data_sets_are_reported_and_unknown_names_refused(written, tmp_path):
    for name in ("a", "b/c"):
        written(name, pairs(name, 2))
    mixture = read_sources(settings({"folder": tmp_path / "data", "exclude": ["b/c"]})).build()
    assert mixture.names == ["a"]
    assert reports(mixture)["b/c"].problem == "excluded by the job"
    with pytest.raises(JobError, match="data holds no data set 'd' to exclude; it has a, b/c"):
        read_sources(settings({"folder": tmp_path / "data", "exclude": ["a", "d"]})).build()
    with pytest.raises(JobError, match="a is a data set itself"):
        read_sources(settings({"folder": tmp_path / "data" / "a", "exclude": ["d"]})).build()


def test_two_sources_of_one_name_are_refused_unless_one_is_renamed(written, write_data_set, tmp_path):
    first = written("a", pairs("a", 2))
    second = write_data_set(tmp_path / "more" / "a", {"task": "pairs"}, {"train.jsonl": pairs("b", 2)})
    with pytest.raises(JobError, match="two sources are called a; give one another name"):
        read_sources(settings(first, second)).build()
    assert read_sources(settings(first, {"folder": second, "name": "b"})).build().names == ["a", "b"]


def test_a_damaged_data_set_is_reported_in_a_folder_and_refused_if_named(written, write_data_set, tmp_path):
    written("a", pairs("a", 2))
    broken = written("b", [{"anchor": "a"}])
    write_data_set(tmp_path / "data" / "c", {"task": "sorting"})
    write_data_set(tmp_path / "data" / "d", {"task": "sentences"})
    write_data_set(tmp_path / "data" / "e", b"{")
    mixture = read_sources(settings(tmp_path / "data")).build()
    found = reports(mixture)
    assert (mixture.names, list(found)) == (["a"], ["c", "d", "e", "a", "b"])
    assert "no 'positive' at train.jsonl line 1" in found["b"].problem
    assert "the task 'sorting' cannot be trained on" in found["c"].problem
    assert found["d"].problem.startswith("it has only sentences")
    assert "META.json" in found["e"].problem
    with pytest.raises(DataSetError, match="b: no 'positive' at train.jsonl line 1"):
        read_sources(settings(broken)).build()
    with pytest.raises(DataSetError, match="file: there is no file"):
        read_sources(settings(tmp_path / "data" / "a", {"jsonl": tmp_path / "file.jsonl"})).build()
    for folder, reason in ((tmp_path / "none", "there is no folder"), (tmp_path / "empty", "holds no data sets")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(JobError, match=reason):
            read_sources(settings(folder)).build()


def test_a_job_without_pairs_is_refused_with_the_reason_of_each_source(written, target, tmp_path):
    written("a", SHARING[1:])
    written("b", [])
    with pytest.raises(JobError, match=r"(?s)no pair to train on.*a: every pair shares a text.*b: .*no rows"):
        read_sources(settings(tmp_path / "data", overlap="drop"), target).build()
    with pytest.raises(JobError, match="a: the target, left out"):
        read_sources(
            settings({"folder": tmp_path / "data", "exclude": ["b"]}), open_left_out(folder=tmp_path / "data" / "a")
        ).build()


def test_the_digest_of_a_mixture_depends_on_pairs_order_names_prompts_and_cap(written):
    rows = pairs("a", 4)
    a, b = written("a", rows), written("b", pairs("b", 4))
    digest = read_sources(settings(a, b)).build().digest()
    assert read_sources(settings(a, b)).build().digest() == digest
    changed = [
        settings(b, a),
        settings(a),
        settings(a, {"folder": b, "name": "c"}),
        settings(a, {"folder": b, "prompts": {"positive": " "}}),
        settings(a, b, cap=3),
        settings(written("c", [*rows[:3], {"anchor": "a asks 3", "positive": "a says 4"}]), b),
        settings(written("d", rows[::-1]), b),
        settings(written("e", [*rows[:3], {"anchor": "a asks", "positive": "3 a says 3"}]), b),
    ]
    found = [read_sources(one).build().digest() for one in changed]
    assert len({digest, *found}) == 1 + len(changed)


def test_list_warnings_warns_of_few_pairs_and_fewer_than_three_sources_for_reze_only(written):
    """Sources of one pair are named by `list_single_pair_warnings`."""
    folders = {name: written(name, pairs(name, 20)) for name in "abc"}
    lone = written("lone", pairs("lone", 1))
    three = read_sources(settings(*folders.values())).build()
    reze = Reze(RegularizerSettings())
    assert reze.list_warnings(three, 29) == []
    assert [len(reze.list_source_warnings(count)) for count in (1, 2, 3)] == [1, 1, 0]
    assert Reze(RegularizerSettings(scale=0.5)).list_source_warnings(2) == []
    (few,) = reze.list_warnings(three, 30)
    assert "60 pairs span at most 59 of the 60 dimensions" in few
    (one,) = reze.list_warnings(read_sources(settings(folders["a"])).build(), 4)
    assert one.startswith("there is only one source")
    (two,) = reze.list_warnings(read_sources(settings(folders["a"], folders["b"])).build(), 4)
    assert two.startswith("there are two sources")
    alone = read_sources(settings(folders["a"])).build()
    for other in (Distillation(RegularizerSettings()), NoRegularizer()):
        assert other.list_warnings(alone, 400) == alone.list_single_pair_warnings() == []
    (single,) = read_sources(settings(*folders.values(), lone)).build().list_single_pair_warnings()
    assert single == "sources with a single pair, whose mean is that pair: lone"


def test_rows_in_memory_are_pairs_of_which_those_that_share_a_text_with_what_is_left_out_are_dropped_or_refused():
    rows = [{"anchor": f"question {n}", "positive": f"answer {n}"} for n in range(6)]
    job = {"sources": [{"rows": rows, "name": "mine"}], "leave_out": ["Question 2!", "answer 4", "elsewhere"]}
    mixture = read_sources(TrainingJob.model_validate(job | {"overlap": "drop"})).build()
    assert (mixture.names, mixture.anchors) == (["mine"], [f"question {n}" for n in (0, 1, 3, 5)])
    assert mixture.reports[0].dropped == {"shares a text with the target": 2}
    with pytest.raises(JobError, match="mine"):
        read_sources(TrainingJob.model_validate(job)).build()
    with pytest.raises(DataSetError, match="no 'positive' at row 2"):
        read_sources(TrainingJob.model_validate({"sources": [{"rows": [rows[0], {"anchor": "a"}]}]})).build()
