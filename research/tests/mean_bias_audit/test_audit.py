"""Audits of encoders: of the tiny model in a whole evaluation, and of scripted encoders that fail."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import NO_PROMPT, Encoding
from lathe.training.evaluation.encoders import EvaluatedEncoder, Member, RequestedEncoder
from lathe.training.evaluation.suites import open_suite
from lathe.training.evaluation.worker import TaskDescription
from research.encoders import list_variants, open_bag_of_words
from research.mean_bias_audit.evaluation import AuditedEvaluation, AuditRequest, evaluate_and_audit
from research.mean_bias_audit.findings import compute_audit_findings
from research.mean_bias_audit.probe import EncodedSuite, Probe, audit_encoder
from research.mean_bias_audit.texts import NORM_TEXTS

WORDS = ["profit", "ledger", "sparrow", "tulip", "kettle", "soup", "debt", "loan", "robin", "hedge"]
ENGLISH = [f"The {WORDS[n % 10]} was {['sold', 'seen in the garden', 'boiled'][n % 3]} {n} times." for n in range(60)]
GERMAN = [f"Der {WORDS[n % 10]} wurde {['verkauft', 'im Garten gesehen'][n % 2]}, {n} Mal." for n in range(70)]
CORPUS = [
    f"On day {n} the new {WORDS[n % 10]} was {['lost', 'sold'][n % 2]}, and no {WORDS[n % 7]} was seen there again."
    for n in range(150)
]
TASKS = [
    TaskDescription("english", "1" * 32, language="en", asked=tuple((None, text) for text in ENGLISH)),
    TaskDescription("german", "2" * 32, language="de", asked=tuple((None, text) for text in GERMAN)),
]


def ignore_progress(*_):
    pass


def pair_texts(texts):
    """Return pairs of texts with a score."""
    half = len(texts) // 2
    pairs = zip(texts[:half], texts[half:], strict=True)
    return [{"sentence1": a, "sentence2": b, "score": n % 5} for n, (a, b) in enumerate(pairs)]


def encode_mean(encoder, texts, **options):
    """Return the mean of an encoder's vectors of texts."""
    return encoder.encode(texts, **options).vectors.astype(np.float64).mean(axis=0)


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


@pytest.fixture(scope="module")
def tiny_spec(tiny_model):
    return EncoderSpec(name="tiny", model=str(tiny_model), dtype="float32")


@pytest.fixture(scope="module")
def bare_spec(tiny_model, tmp_path_factory):
    """Return the spec of the tiny model without its normalization module."""
    folder = tmp_path_factory.mktemp("bare")
    model = SentenceTransformer(str(tiny_model), device="cpu")
    SentenceTransformer(modules=list(model)[:2], device="cpu").save(str(folder), create_model_card=False)
    return EncoderSpec(name="bare", model=str(folder), dtype="float32")


@pytest.fixture(scope="module")
def first(tmp_path_factory, write_data_set, tiny_spec, scoring_process):
    """Evaluate the tiny model with debiasing methods and an audit.

    Run again without the audit's file, and with it.
    """
    root = tmp_path_factory.mktemp("audited")
    for name, language, texts in (("english", "en", ENGLISH), ("german", "de", GERMAN)):
        write_data_set(root / "suite" / name, {"task": "sts", "language": language}, {"test.jsonl": pair_texts(texts)})
    (root / "corpus.txt").write_text("\n".join(CORPUS))
    asked = {"corpus": str(root / "corpus.txt"), "ladder": True}
    request = AuditRequest(open_suite(str(root / "suite")), [RequestedEncoder(tiny_spec)], root / "out", **asked)
    told, audits, written = [], [], []
    for report in (lambda fraction, message: told.append((fraction, message)), ignore_progress):
        evaluation = AuditedEvaluation(request, report)
        evaluation.run_encoder(request.encoders[0].open(None), scoring_process)
        audits += evaluation.audits.values()
        (kept,) = (request.out / "audits").iterdir()
        written.append(kept.read_bytes())
        kept.unlink()
    kept.write_bytes(written[0])
    before = kept.stat().st_mtime_ns
    results, found = evaluate_and_audit(request, ignore_progress)
    assert kept.stat().st_mtime_ns == before
    audits.append(found["tiny"])
    findings = compute_audit_findings(results, found)
    kinds = {"request": request, "results": results, "findings": findings, "audits": audits, "written": written}
    return SimpleNamespace(**kinds, audit=audits[0], told=told)


def audit_opened(encoder, out, tasks=TASKS):
    """Return the audit of an encoder on the corpus."""
    keys = [task.key for task in tasks]
    return audit_encoder(EncodedSuite(out, encoder, CORPUS, "d" * 32, keys, lambda: tasks, ignore_progress))


def test_every_part_of_an_audit_equals_a_computation_from_the_encoders_vectors(first, tiny_spec):
    encoder, audit = Encoder(tiny_spec), first.audit
    assert audit.problems == ()
    assert (audit.norms.texts, audit.norms.unit) == (130, 1)  # the model normalises
    mean = encode_mean(encoder, CORPUS)
    assert audit.corpus.direction.rows == audit.corpus.growth[-1].n == len(CORPUS)
    assert audit.corpus.direction.mean_norm == pytest.approx(np.linalg.norm(mean), abs=1e-5)
    vectors = encoder.encode(CORPUS).vectors
    (component, *_) = np.linalg.svd(vectors - mean)[2]
    assert audit.corpus.direction.centered == pytest.approx(abs(cosine(component, mean)), abs=1e-3)

    english, german = audit.languages.means
    assert ([english.language, german.language], audit.languages.texts) == (["en", "de"], 60)
    assert english.norm == pytest.approx(np.linalg.norm(encode_mean(encoder, ENGLISH)), abs=1e-5)
    assert german.cosine == pytest.approx(cosine(encode_mean(encoder, ENGLISH), encode_mean(encoder, GERMAN)), abs=0.02)
    assert german.cosine < 1 - 1e-4  # the languages do differ

    assert audit.prompts.generic
    assert audit.prompts.plain_norm == pytest.approx(np.linalg.norm(mean), abs=1e-5)
    for one in audit.prompts.means:
        prompted = encode_mean(encoder, [one.prompt + text for text in CORPUS])
        assert (one.norm, one.cosine) == pytest.approx((np.linalg.norm(prompted), cosine(prompted, mean)), abs=1e-5)
    assert [one.prompt for one in audit.prompts.means] == ["query: ", "passage: "]


def test_audited_norms_equal_those_of_sentence_transformers_vectors(bare_spec, tmp_path):
    audit = audit_opened(RequestedEncoder(bare_spec).open(None), tmp_path)
    model = SentenceTransformer(bare_spec.model, device="cpu")
    lengths = np.linalg.norm(model.encode([*ENGLISH, *GERMAN]), axis=1)
    assert (audit.norms.texts, audit.norms.unit) == (130, 0)
    found = audit.norms.mean, audit.norms.std, audit.norms.min, audit.norms.max
    assert found == pytest.approx((lengths.mean(), lengths.std(), lengths.min(), lengths.max()), rel=1e-4)
    assert audit.corpus.direction.mean_norm <= 1  # all else is of unit vectors


def test_each_layer_variant_has_its_own_audited_norms(bare_spec, tmp_path):
    means = []
    for way in ("cls", "mean"):
        (variant,) = list_variants(bare_spec, f"layer1-{way}")
        audit = audit_opened(variant.open(None), tmp_path)
        lengths = np.linalg.norm(Encoder(variant.spec).encode([*ENGLISH, *GERMAN], normalize=False).vectors, axis=1)
        assert (audit.norms.mean, audit.norms.max) == pytest.approx((lengths.mean(), lengths.max()), rel=1e-4)
        means.append(audit.norms.mean)
    assert means[0] != pytest.approx(means[1], rel=1e-3)


def test_means_by_prompt_use_the_encoders_prompts_and_none(bare_spec, tmp_path):
    prompts = {"query": "find this: ", "same": "find this: ", "blank": ""}
    spec = replace(bare_spec, prompts=prompts, default_prompt_name="query")
    audit = audit_opened(RequestedEncoder(spec).open(None), tmp_path)
    assert not audit.prompts.generic
    assert [one.name for one in audit.prompts.means] == ["query", "same"]
    encoder = Encoder(spec)
    plain, prompted = encode_mean(encoder, CORPUS, prompt_name=NO_PROMPT), encode_mean(encoder, CORPUS)
    assert audit.prompts.plain_norm == pytest.approx(np.linalg.norm(plain), abs=1e-5)
    for one in audit.prompts.means:
        assert (one.norm, one.cosine) == pytest.approx((np.linalg.norm(prompted), cosine(plain, prompted)), abs=1e-5)
    assert audit.prompts.means[0].cosine < 1 - 1e-4
    assert audit.corpus.direction.mean_norm == pytest.approx(np.linalg.norm(prompted), abs=1e-5)


class Scripted:
    """Encoder that computes vectors by a function of the text and records its batches."""

    def __init__(self, vector):
        self.vector = vector
        self.batches = []

    def encode(self, texts, prompt_name=None, normalize=True, on_batch=None):
        self.batches.append(list(texts))
        found = np.array([self.vector(text) for text in texts], np.float32)
        if normalize:
            lengths = np.linalg.norm(found, axis=1, keepdims=True)
            found = found / np.where(lengths == 0, 1, lengths)
        return Encoding(found, np.zeros(len(texts), np.int64))


def varied(text):
    """Return a random vector that depends on the text."""
    return np.random.default_rng(len(text) + text.encode()[-2]).normal(0.5, 1, size=4)


def audit_scripted(scripted, folder, tasks=TASKS):
    """Return the audit of a scripted encoder."""
    member = Member("scripted", "f" * 32, "f" * 32, 4, {}, None, "scripted")
    return audit_opened(EvaluatedEncoder(scripted, member), folder, tasks)


def test_a_repeated_audit_encodes_nothing_and_one_of_other_data_does(tmp_path):
    group = Scripted(varied)
    audit = audit_scripted(group, tmp_path)
    group.batches.clear()
    assert audit_scripted(group, tmp_path) == audit
    assert group.batches == []
    other = [*TASKS, TaskDescription("more", "3" * 32, language="en", asked=((None, "one more"),))]
    assert audit_scripted(group, tmp_path, other) != audit
    texts = {"one more", *ENGLISH, *GERMAN}
    assert len(group.batches[0]) == 131 < NORM_TEXTS and set(group.batches[0]) == texts


def test_an_audit_leaves_out_texts_on_which_the_encoder_fails_and_reports_them(tmp_path):
    """The next audit tries these texts again."""

    def failing(text):
        if text in GERMAN[:2] or text.startswith("passage: "):
            raise RuntimeError("index out of range")
        return 3 * varied(text) / np.linalg.norm(varied(text))

    group = Scripted(failing)
    audit = audit_scripted(group, tmp_path)
    assert audit.norms.texts == 128
    assert audit.norms.mean == pytest.approx(3, rel=1e-6)
    why = "RuntimeError: index out of range"
    left_out = f"2 of 130 texts cannot be encoded; the norms leave them out: {why}"
    said = [problem.partition(": EncoderError: scripted fails on some of") for problem in audit.problems[1:]]
    assert audit.problems[0] == left_out
    assert [what for what, _, _ in said] == [
        "μ by language cannot be measured",
        "μ under the prompt generic passage cannot be measured",
    ]
    assert all(rest.endswith(why) for _, _, rest in said)
    assert (audit.languages, audit.corpus.direction.rows) == (None, len(CORPUS))
    assert [one.name for one in audit.prompts.means] == ["generic query"]
    group.batches.clear()
    audit_scripted(group, tmp_path)
    assert group.batches  # what failed is tried again


def test_an_audit_leaves_out_vectors_of_nan_and_reports_them(tmp_path):
    audit = audit_scripted(Scripted(lambda text: varied(text) * (np.nan if text == ENGLISH[3] else 1)), tmp_path)
    assert audit.norms.texts == 129
    left_out, languages = audit.problems
    assert left_out == "1 of 130 texts give NaN or inf; the norms leave them out"
    assert languages == "μ by language cannot be measured: row 3 holds NaN or inf"


def test_an_audit_of_equal_or_zero_vectors_has_no_problems(tmp_path):
    alike = audit_scripted(Scripted(lambda text: np.array([3, 0, 4, 0])), tmp_path / "alike")
    assert (alike.problems, alike.norms.std, alike.corpus.direction.centered) == ((), 0, None)
    assert alike.languages.means[1].cosine == pytest.approx(1)
    zero = audit_scripted(Scripted(lambda text: np.zeros(4)), tmp_path / "zero")
    assert (zero.problems, zero.norms.zero_rows, zero.corpus.direction.zero_rows) == ((), 130, len(CORPUS))
    assert (zero.languages.means[1].cosine, zero.prompts.means[0].cosine) == (None, None)
    assert zero.corpus.direction.uncentered is None


def test_a_bag_of_words_is_audited_by_its_counts_and_has_no_prompts(tmp_path):
    texts = ["a b", "cats see cats see dogs", "?"]
    task = TaskDescription("t", "1" * 32, language="en", asked=tuple((None, text) for text in texts))
    bag = open_bag_of_words()
    probe = Probe(EncodedSuite(tmp_path, bag, CORPUS, "", [], lambda: [task], ignore_progress))
    norms, prompts, languages = probe.measure_norms(), probe.measure_prompts(), probe.measure_languages()
    assert (norms.texts, norms.zero_rows) == (3, 2)  # words of one letter count for nothing
    assert norms.max == pytest.approx(3)  # 2² + 2² + 1
    assert prompts is None
    assert (languages.means, languages.few) == ((), {"en": 3})
    assert probe.problems == []
