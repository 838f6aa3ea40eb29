from fractions import Fraction

import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.evaluation.encoders import RequestedEncoder
from lathe.training.evaluation.methods import CONTROL
from lathe.training.evaluation.suites import open_suite
from lathe.transforms import Chain
from research.fitted_methods.evaluation import FittedRequest, evaluate_fitted

pytestmark = pytest.mark.usefixtures("scoring_here")

WORDS = ["profit", "ledger", "sparrow", "tulip", "kettle", "soup", "debt", "loan", "robin", "hedge"]
CORPUS = [
    f"On day {n} the new {WORDS[n % 10]} was {['lost', 'sold'][n % 2]}, and no {WORDS[n % 7]} was seen there again."
    for n in range(150)
]
SENTENCES = [
    {"sentence1": f"The {WORDS[n % 10]} grew {n} times.", "sentence2": f"A {WORDS[n % 7]} {n}.", "score": n * 3 % 5}
    for n in range(20)
]


@pytest.fixture(scope="module")
def request_of(tmp_path_factory, write_data_set, tiny_model):
    """Return a request for one debiasing method, one that cannot be fitted to 16 dimensions, and one reducer."""
    folder = tmp_path_factory.mktemp("evaluation")
    write_data_set(folder / "suite" / "same", {"task": "sts"}, {"test.jsonl": SENTENCES})
    (folder / "corpus.txt").write_text("\n".join(CORPUS))
    spec = EncoderSpec(name="tiny", model=str(tiny_model), dtype="float32")
    asked = {"corpus": str(folder / "corpus.txt"), "ladder": True, "sizes": [Fraction(1, 2)]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("research.fitted_methods.methods.DEBIASING", {"R2": "r2", "ABTT-20": "abtt:20"})
        patch.setattr("research.fitted_methods.methods.REDUCERS", ("pca:{k}",))
        yield FittedRequest(open_suite(str(folder / "suite")), [RequestedEncoder(spec)], folder / "out", **asked)


def test_methods_are_fitted_on_the_corpus_and_scored_once(request_of, scoring_here):
    results = evaluate_fitted(request_of, lambda *_: None)
    assert {score.method for score in results.scores} == {CONTROL, "R2", "pca:8"}
    assert not any(score.error for score in results.scores)
    (result,) = results.encoders
    assert set(result.problems) == {"ABTT-20"}
    assert set(result.intrinsic) == {"pca:8"}
    assert results.corpus_rows == len(CORPUS)

    # R2 removes the mean of the sentences to fit on: a tenth of them is held out.
    encoder = Encoder(request_of.encoders[0].spec)
    vectors = encoder.encode(CORPUS).vectors
    order = np.random.default_rng(0).permutation(len(CORPUS))[len(CORPUS) // 10 :]
    mean = vectors[order].astype(np.float64).mean(axis=0)
    assert result.mean_norm == pytest.approx(np.linalg.norm(mean), abs=1e-5)
    chain = Chain.load(request_of.out / "methods" / result.methods["R2"].key)
    np.testing.assert_allclose(chain.transform(vectors) @ mean, 0, atol=1e-5)

    again = evaluate_fitted(request_of, lambda *_: None)
    assert again.scores == results.scores
    assert len((request_of.out / "scores.jsonl").read_text().splitlines()) == len(results.scores)
