import pytest

from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.errors import EvaluationError
from lathe.training.evaluation.suites import SHIPPED, Entry, open_suite

STS = {"task": "sts", "language": "de"}
ROWS = {"test.jsonl": [{"sentence1": "a", "sentence2": "b", "score": 1}]}
PAIRS = {"test.jsonl": [{"anchor": "a", "positive": "b"}]}


BAD_META = [
    (b"{", "META.json must be an object with a 'task'"),
    ({"language": "en"}, "META.json must be an object with a 'task': KeyError('task')"),
    ({"task": "guessing"}, "META.json names the task 'guessing'; there are retrieval, reranking"),
]
BAD_FILES = [
    ("tasks: [", "cannot be read"),
    ("- mteb: STSBenchmark", "cannot be read"),
    ("tasks:\n  - {name: x, hub: a/b}", "cannot be read: KeyError('task')"),
    ("tasks: [{mteb: STS12}]\nencoders:\n  - {family: x}", "cannot be read: KeyError('model')"),
    ("title: empty", "lists no tasks"),
    ("tasks:\n  - {path: x}", "has path; it must have 'mteb', 'folder' or 'hub'"),
    ("tasks:\n  - {name: x, hub: a/b, task: guessing}", "x: there is no task 'guessing'; there are retrieval"),
    ("tasks:\n  - {mteb: NoSuchTask}", "'NoSuchTask' not found"),
    ("tasks:\n  - {folder: nowhere}", "the folder nowhere holds no data sets"),
]


@pytest.fixture
def yaml(tmp_path):
    """Return a function that writes a suite file and returns its path."""

    def build(text):
        (tmp_path / "suite.yaml").write_text(text)
        return str(tmp_path / "suite.yaml")

    return build


def test_a_folder_suite_has_every_data_set_below_the_folder_named_by_path(tmp_path, write_data_set):
    root = tmp_path / "root"
    for name in ("b", "a/deep/one", "a/deep/two"):
        write_data_set(root / name, STS, ROWS)
    suite = open_suite(str(root))
    expected = [(name, str(root / name), "sts", "de") for name in ("a/deep/one", "a/deep/two", "b")]
    assert [(entry.name, entry.place, entry.task, entry.language) for entry in suite.entries] == expected
    assert (suite.title, suite.problems, suite.encoders) == ("root", {}, ())


@pytest.mark.parametrize(("meta", "reason"), BAD_META)
def test_a_data_set_with_a_bad_meta_json_is_a_problem_and_the_others_remain(tmp_path, write_data_set, meta, reason):
    write_data_set(tmp_path / "good", STS, ROWS)
    write_data_set(tmp_path / "deep" / "bad", meta, ROWS)
    for name in ("plain/test.jsonl", "packed/test.jsonl.gz"):
        write_data_set((tmp_path / name).parent, None, {name.partition("/")[2]: ROWS["test.jsonl"]})
    suite = open_suite(str(tmp_path))
    assert [entry.name for entry in suite.entries] == ["good"]
    assert list(suite.problems) == ["deep/bad", "packed", "plain"]
    assert suite.problems["packed"] == suite.problems["plain"] == "META.json is missing"
    assert suite.problems["deep/bad"].startswith(reason)


def test_data_sets_without_a_test_are_left_out_without_a_problem(tmp_path, write_data_set):
    write_data_set(tmp_path / "corpus", {"task": "sentences"}, {"sentences.jsonl": [{"text": "a"}]})
    write_data_set(tmp_path / "trained", {"task": "pairs"}, {"train.jsonl": PAIRS["test.jsonl"]})
    write_data_set(tmp_path / "tested", {"task": "pairs"}, {"test.jsonl.gz": PAIRS["test.jsonl"]})
    suite = open_suite(str(tmp_path))
    assert [(entry.name, entry.task) for entry in suite.entries] == [("tested", "pairs")]
    assert suite.problems == {}


def test_a_folder_without_data_sets_and_an_empty_list_of_tasks_are_refused(tmp_path):
    with pytest.raises(EvaluationError, match="holds no data sets: folders with a META.json"):
        open_suite(str(tmp_path))
    with pytest.raises(EvaluationError, match="names no task; write mteb:"):
        open_suite("mteb: ,")


@pytest.mark.release
def test_mteb_suites_expand_benchmarks_to_tasks_in_the_given_order():
    names = [entry.name for entry in open_suite("mteb:STS12, FollowIR,STS13").entries]
    assert (names[0], names[-1]) == ("STS12", "STS13")
    assert set(names[1:-1]) == {f"{source}InstructionRetrieval" for source in ("Robust04", "News21", "Core17")}


def test_a_suite_file_may_list_mteb_tasks_folders_hub_data_sets_and_encoders(yaml, tmp_path, write_data_set):
    write_data_set(tmp_path / "data" / "mine", STS, ROWS)
    suite = open_suite(
        yaml("""
title: Mine
reference: https://example.org
tasks:
  - mteb: STS12
  - folder: data
  - {name: Fin, task: sts, hub: org/fin, revision: abc, split: dev, language: zh,
     columns: {sentence1: a, score: s}, main_score: cosine_pearson}
  - {name: Plain, task: clustering, hub: org/plain}
encoders:
  - {model: org/one, family: org, published_mean_norm: 0.5}
  - {model: org/two}
""")
    )
    columns = (("sentence1", "a"), ("score", "s"))
    assert suite.entries == (
        Entry("STS12", "mteb", "STS12", subsets=("default",), splits=("test",)),
        Entry("mine", "folder", str(tmp_path / "data" / "mine"), "sts", "de"),
        Entry("Fin", "hub", "org/fin", "sts", "zh", "abc", "dev", columns, "cosine_pearson"),
        Entry("Plain", "hub", "org/plain", "clustering", "en", "main"),
    )
    listed = [(one.spec.model, one.family, one.published_mean_norm) for one in suite.encoders]
    assert listed == [("org/one", "org", 0.5), ("org/two", None, None)]
    assert (suite.title, suite.reference) == ("Mine", "https://example.org")


@pytest.mark.parametrize(("text", "reason"), BAD_FILES)
def test_an_invalid_suite_file_is_refused_with_the_reason(yaml, text, reason):
    with pytest.raises(EvaluationError) as caught:
        open_suite(yaml(text))
    assert reason in str(caught.value)


def test_an_unknown_suite_is_refused_and_the_shipped_suites_are_listed(tmp_path):
    shipped = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.yaml")))
    for written in ("nonsense", "../suites/finmteb", str(tmp_path / "finmteb"), str(tmp_path / "finmteb.yaml")):
        with pytest.raises(EvaluationError) as caught:
            open_suite(written)
        assert repr(written) in str(caught.value)
        assert str(caught.value).endswith(shipped)


def test_finmteb_lists_the_63_data_sets_of_its_repository_at_fixed_revisions():
    suite = open_suite("finmteb")
    assert open_suite("finmteb.yaml").entries == suite.entries
    assert len(suite.entries) == len({entry.name for entry in suite.entries}) == 63
    assert {entry.task for entry in suite.entries} <= set(LAYOUTS)
    assert {len(entry.revision) for entry in suite.entries} == {40}
    assert suite.encoders == ()


def test_mean_bias_panel_has_the_papers_38_encoders_with_published_mean_norms():
    suite = open_suite("mean-bias-panel")
    assert len({encoder.spec.model for encoder in suite.encoders}) == len(suite.encoders) == 38
    assert all(0 < encoder.published_mean_norm < 1 and encoder.family for encoder in suite.encoders)
    assert {entry.kind for entry in suite.entries} == {"mteb"}
    assert len({entry.name for entry in suite.entries}) == len(suite.entries) > 100


def test_the_digest_of_a_data_set_depends_on_its_files_names_and_contents_and_not_its_folder(tmp_path, write_data_set):
    def digest(name):
        return open_suite(str(tmp_path / name)).entries[0].digest()

    one = write_data_set(tmp_path / "one" / "set", STS, ROWS, {"test": [("q", "d", 1)]})
    write_data_set(tmp_path / "two" / "set", STS, ROWS, {"test": [("q", "d", 1)]})
    original = digest("one")
    assert digest("one") == digest("two") == original
    for path in (one / "test.jsonl", one / "META.json", one / "qrels" / "test.tsv"):
        kept = path.read_bytes()
        path.write_bytes(kept + b" ")
        assert digest("one") != original
        path.write_bytes(kept)
        assert digest("one") == original
    (one / "test.jsonl").rename(one / "tests.jsonl")  # in the same place among the others
    assert digest("one") != original


def test_the_digest_of_a_hub_data_set_depends_on_every_field():
    columns = (("text", "sentence"),)
    fields = {"kind": "hub", "place": "a/b", "task": "sts", "language": "en", "revision": "r", "split": "s"}
    entries = [Entry("n", **fields), Entry("m", **fields), Entry("n", **fields, columns=columns)]
    entries += [Entry("n", **fields, main_score="ap")]
    entries += [Entry("n", **(fields | {name: "mteb"})) for name in fields]
    digests = [entry.digest() for entry in entries]
    assert digests[0] == Entry("n", **fields).digest()
    assert len(set(digests)) == len(digests)
