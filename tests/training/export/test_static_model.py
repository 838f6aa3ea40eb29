import json

import numpy as np
import pytest
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import ExportError
from lathe.training.export.static_model import RIDGE, SIF, export_static, fit_tokens, split_texts
from lathe.transforms import Chain, parse_steps
from lathe.transforms.quality import recall_at_k


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return Encoder(EncoderSpec("tiny", str(tiny_model)), "cpu")


@pytest.fixture(scope="module")
def fit(tiny, paragraphs):
    """Return a function that fits a chain on the tiny encoder's vectors."""
    rows = tiny.encode(paragraphs).vectors

    def make(steps, normalize=True):
        chain = Chain(parse_steps(steps), normalize).fit(rows)
        chain.metadata = {"encoder": tiny.describe(), "certificate": {"recall_at_10": 0.5}}
        return chain

    return make


@pytest.fixture(scope="module")
def source(paragraphs, tmp_path_factory):
    """Write the paragraphs to a file of texts, a few of them twice."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*paragraphs, *paragraphs[:5]]))
    return path


@pytest.fixture(scope="module")
def exported(fit, tiny, source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("static") / "model"
    chain = fit("r2,geopres:8,steps=5")
    return chain, export_static(chain, tiny, folder, "small@1", str(source))


@pytest.fixture(scope="module")
def model(exported):
    return SentenceTransformer(str(exported[1].folder), device="cpu")


def tokens_of(model, text):
    return model.tokenizer.encode(text, add_special_tokens=False).ids


def table_of(exported):
    return load_file(exported[1].folder / "0_StaticEmbedding/model.safetensors")["embedding.weight"].numpy()


def test_a_texts_vector_is_the_unit_mean_of_its_tokens_rows(exported, model, paragraphs):
    table = table_of(exported)
    means = np.stack([table[tokens_of(model, text)].mean(axis=0) for text in paragraphs])
    found = model.encode(paragraphs)
    np.testing.assert_allclose(found, means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-6)
    assert found.shape[1] == exported[0].output_dimensions == 8
    assert 0 <= exported[1].difference <= 1e-6


def test_the_row_of_a_token_of_no_text_is_the_chain_of_the_encoders_vector_less_the_mean_times_the_weight(
    exported, model, tiny, paragraphs
):
    """Of the differences of such tokens, so that the mean over the vocabulary drops out, and up to one scale."""
    table, chain = table_of(exported), exported[0]
    seen = {token for text in paragraphs for token in tokens_of(model, text)}
    free = {word: place for word, place in model.tokenizer.get_vocab().items() if place not in seen}
    words = sorted(word for word in free if word.isascii() and word.isalpha() and len(word) > 6)[:400:100]
    places = np.array([free[word] for word in words])
    assert len(places) == 4
    ranks = 1 / np.arange(2, len(table) + 2)
    weights = SIF / (SIF + ranks / ranks.sum())
    unweighted = table[places] / weights[places, None]
    transformer, pooling = tiny.model[0], tiny.model[1]
    vectors = pooling(transformer(tiny.model.preprocess(words)))["sentence_embedding"]
    product = chain.fold().float_steps[0].weight
    expected = ((vectors - vectors[:1]) @ product.T).detach().numpy()
    found = unweighted - unweighted[:1]
    scale = (found * expected).sum() / (expected * expected).sum()
    assert scale > 0
    np.testing.assert_allclose(found, scale * expected, atol=1e-4 * np.abs(found).max())


def test_fitted_tokens_minimize_the_distance_to_targets_and_prior():
    """Compared with the same regression written as least squares over all tokens."""
    rng = np.random.default_rng(0)
    prior, weights, targets = rng.normal(size=(30, 4)), rng.uniform(0.1, 1, 30), rng.normal(size=(12, 4))
    ids = [list(rng.integers(0, 20, size=rng.integers(1, 9))) for _ in range(12)]
    found = fit_tokens(prior, weights, ids, targets)
    rows = np.zeros((12, 30))
    for row, of_text in enumerate(ids):
        for token in of_text:
            rows[row, token] += weights[token] / len(of_text)
    scale = np.linalg.lstsq((rows @ prior).reshape(-1, 1), targets.ravel())[0].item()
    penalty = RIDGE * (rows * rows).sum() / 12
    stacked = np.concatenate([rows, np.sqrt(penalty) * np.eye(30)])
    aims = np.concatenate([targets, np.sqrt(penalty) * scale * prior])
    np.testing.assert_allclose(found, np.linalg.lstsq(stacked, aims)[0], atol=1e-9)
    np.testing.assert_allclose(found[20:], scale * prior[20:], atol=1e-12)


def test_the_order_of_tokens_does_not_matter_and_long_texts_are_read_whole(model):
    words = "the dark old volcano lathe".split()
    one, other = model.encode([" ".join(words), " ".join(reversed(words))])
    np.testing.assert_allclose(one, other, atol=1e-6)
    filler = "the " * 2000
    short, long = model.encode([filler, filler + "volcano " * 2000])
    assert np.abs(short - long).max() > 0.01


def test_the_certificate_holds_the_measures_on_texts_that_were_not_fitted(exported, model, tiny, paragraphs, source):
    chain, found = exported
    certificate = json.loads((found.folder / "certificate.json").read_text())
    fitted, texts = split_texts(str(source))
    assert not set(fitted) & set(texts) and set(fitted) | set(texts) == set(paragraphs)
    assert certificate["n_fit"] == len(fitted)
    expected = recall_at_k(chain.floats(tiny.encode(texts).vectors), model.encode(texts), 10)
    assert certificate["recall_at_10"] == pytest.approx(expected, abs=1e-3) and certificate["n_heldout"] == len(texts)
    assert 0 < certificate["recall_at_10"] < certificate["recall_at_10_rescored_4x"] <= 1
    assert certificate["bytes"]["static"] == table_of(exported).nbytes
    assert certificate["texts_per_core_second"]["static"] > 0
    readme = (found.folder / "README.md").read_text()
    assert f"| {certificate['recall_at_10']:.3f} |" in readme and certificate["source"] in readme
    described = json.loads((found.folder / "lathe.json").read_text())
    assert described["certificate_of_chain"] == {"recall_at_10": 0.5} and "certificate" not in described


def test_the_modules_are_sentence_transformers_own(exported):
    modules = json.loads((exported[1].folder / "modules.json").read_text())
    kinds = ["sentence_transformers.models.StaticEmbedding", "sentence_transformers.models.Normalize"]
    assert [module["type"] for module in modules] == kinds
    assert set(exported[1].files) >= {"certificate.json", "lathe.json", "README.md", "modules.json"}


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ("r2,geopres:8,steps=5,int8", "without its codes"),
        ("r2,normalize,pca:8", "normalizes between its steps"),
        ("truncation:8", None),
        ("pca:8", None),
    ],
)
def test_chains_of_more_than_one_product_are_refused(fit, tiny, source, tmp_path, steps, reason):
    if reason is None:
        assert export_static(fit(steps), tiny, tmp_path / "model", "x@1", str(source)).difference <= 1e-6
        return
    with pytest.raises(ExportError, match=reason):
        export_static(fit(steps), tiny, tmp_path / "model", "x@1", str(source))
    assert not (tmp_path / "model").exists()


def test_static_encoders_and_few_texts_are_refused(fit, tiny, exported, source, tmp_path):
    static = Encoder(EncoderSpec("static", str(exported[1].folder)), "cpu")
    chain = Chain(parse_steps("pca:4")).fit(static.encode(source.read_text().splitlines()).vectors)
    chain.metadata = {"encoder": static.describe()}
    with pytest.raises(ExportError, match="static is static already"):
        export_static(chain, static, tmp_path / "model", "x@1", str(source))
    (tmp_path / "few.txt").write_text("one\ntwo\n\none\n")
    with pytest.raises(ExportError, match="holds 2 texts: a static model needs 250"):
        export_static(fit("pca:8"), tiny, tmp_path / "model", "x@1", str(tmp_path / "few.txt"))
    with pytest.raises(ExportError, match="name the encoder"):
        export_static(fit("pca:8"), None, tmp_path / "model", "x@1", str(source))
    assert not (tmp_path / "model").exists()


def test_an_encoder_without_a_vocabulary_is_refused(fit, tiny, source, tmp_path, monkeypatch):
    monkeypatch.setattr(type(tiny.model.tokenizer), "backend_tokenizer", None)
    with pytest.raises(ExportError, match="tiny has no tokenizer with a vocabulary"):
        export_static(fit("pca:8"), tiny, tmp_path / "model", "x@1", str(source))
