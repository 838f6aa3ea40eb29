"""Export of a chain and its encoder as a static model: a table with a vector for each token, whose mean is a text's.

folder/
├── modules.json, 0_StaticEmbedding, 1_Normalize   stock modules of sentence-transformers
├── certificate.json                               recall and throughput of the static model
└── README.md, lathe.json                          metadata

The table begins as model2vec makes its own (Tulkens and van Dongen, 2024): the encoder reads each token of its
vocabulary alone, the vectors are centred, and frequent tokens get small weights. The chain takes the place of the PCA.
A ridge regression then moves the vectors of tokens in the source's texts towards those that give the texts' vectors.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import ExportError
from lathe.training.export.folder import (
    PROBE_TEXTS,
    Exported,
    open_staging_folder,
    require_close,
    require_encoder,
    write_description,
)
from lathe.training.export.servers import STOCK
from lathe.training.sources.source import open_source
from lathe.transforms.chain import Chain
from lathe.transforms.linear import Affine, Normalize, Selection
from lathe.transforms.quality.certificate import geometry_measures

SIF = 1e-4
"""Frequency of a token, by Zipf's law on its rank in the vocabulary, at which its weight is one half."""

BATCH = 512
"""Tokens that the encoder reads at once, each as a text of its own."""

MAX_TEXTS, MIN_TEXTS, EVERY = 5000, 250, 5
"""Maximum and minimum number of texts; every fifth is held out, and the others are fitted."""

TIMED_TEXTS = 100
"""Number of texts that the encoder's throughput is measured on."""

RIDGE = 0.3
"""Penalty of the regression, relative to the mean squared norm of a text's row of token weights.

Of 1, 0.3, 0.1 and 0.03, it gave the best recall on held-out texts of each of three corpora, at 1,000 fitted texts of
each; without the regression, recall@10 was .23 to .30 in place of .36 to .47."""

CERTIFICATE = "certificate.json"


def export_static(chain: Chain, encoder: Encoder | None, folder: Path, reference: str, source: str) -> Exported:
    """Fit a static model of encoder and chain to texts, write it, and measure what it loses on held-out texts.

    Args:
        chain: fitted chain that folds to one product, normalized or not.
        encoder: encoder of the vectors that the chain takes.
        folder: folder to create; an existing one must be empty.
        reference: name of the chain, for README.md and lathe.json.
        source: texts to fit the table to and to measure it on, as `open_source` takes them; see `split_texts`.

    Raises:
        ExportError: if the chain is not exportable, normalizes between steps or has codes, the encoder is missing, not
            the chain's, static already or without a tokenizer of its own file, there are too few texts, or the folder
            is not empty.
        SourceError: if the source cannot be read.
        OSError: if a file cannot be written; nothing is left in the folder.
    """
    encoder = require_encoder(chain, encoder)
    tokenizer = _copy_tokenizer(encoder)
    product = _require_product(chain)
    fitted, held_out = split_texts(source)
    with open_staging_folder(folder) as staging:
        table = _build_table(encoder, product, tokenizer, fitted, _encode(chain, encoder, fitted))
        _write_modules(staging, tokenizer, table)
        static = Encoder(EncoderSpec(reference, str(staging)), "cpu")
        found = static.encode(PROBE_TEXTS, normalize=False).vectors
        difference = require_close(found, _mean_of_tokens(tokenizer, table, PROBE_TEXTS), "the static model")
        certificate = {
            "n_fit": len(fitted),
            **certify_static(chain, encoder, static, held_out, open_source(source).name),
        }
        (staging / CERTIFICATE).write_text(json.dumps(certificate, indent=1) + "\n")
        write_description(staging, chain, reference, _format_usage(certificate))
        _rename_certificate(staging / "lathe.json")
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Exported(folder, files, difference)


def _copy_tokenizer(encoder: Encoder) -> Any:
    """Return a copy of an encoder's tokenizer, of the library `tokenizers`, that neither cuts nor pads texts.

    Raises:
        ExportError: if the encoder is static already, or has no such tokenizer.
    """
    if encoder.static:
        raise ExportError(f"{encoder.name} is static already: export it with --format sentence-transformers")
    backend = getattr(encoder.model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ExportError(f"{encoder.name} has no tokenizer with a vocabulary, which a static model looks tokens up in")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _require_product(chain: Chain) -> torch.Tensor:
    """Return the matrix `(k, d)` of a chain that folds to one product, perhaps normalized at its end.

    Raises:
        ExportError: for another chain: a mean of token vectors goes through a product, but through nothing else.
    """
    if chain.quantizer is not None:
        raise ExportError("a static model holds floats: export the chain without its codes")
    steps = [step for step in chain.fold().float_steps if not isinstance(step, Normalize)]
    if len(steps) != 1 or not isinstance(steps[0], Affine | Selection):
        raise ExportError(
            "the chain normalizes between its steps, and a mean of token vectors can go through one product only: "
            "export a chain such as r2 with geopres"
        )
    step = steps[0].as_affine() if isinstance(steps[0], Selection) else steps[0]
    return step.weight.detach().float().cpu()


def split_texts(source: str) -> tuple[list[str], list[str]]:
    """Return texts to fit, and every fifth as held out, of up to `MAX_TEXTS` distinct texts evenly spaced in a source.

    Raises:
        ExportError: if there are fewer than `MIN_TEXTS`.
    """
    found = [value for batch in open_source(source).batches() for value in batch.values if isinstance(value, str)]
    texts = list(dict.fromkeys(text for text in found if text.strip()))
    if len(texts) < MIN_TEXTS:
        raise ExportError(f"{source} holds {len(texts)} texts: a static model needs {MIN_TEXTS} or more")
    positions = np.linspace(0, len(texts) - 1, min(MAX_TEXTS, len(texts))).astype(int)
    chosen = [texts[position] for position in positions]
    return [text for position, text in enumerate(chosen) if position % EVERY], chosen[::EVERY]


def _encode(chain: Chain, encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the vectors `(n, k)` that encoder and chain give for texts."""
    found: NDArray[np.float32] = chain.floats(encoder.encode(texts).vectors)
    return found


@torch.inference_mode()
def _encode_tokens(encoder: Encoder) -> NDArray[np.float32]:
    """Return the encoder's vector `(v, d)` of each token of its vocabulary, read alone and not normalized."""
    tokenizer = encoder.model.tokenizer
    sample = tokenizer("a", return_special_tokens_mask=True)
    special = sample.pop("special_tokens_mask")
    before, after = special.index(0), special[::-1].index(0)
    ids = sample["input_ids"]
    modules = [module for module in list(encoder.model)[1:] if type(module).__name__ != "Normalize"]
    count = max(tokenizer.get_vocab().values()) + 1
    found = []
    for start in range(0, count, BATCH):
        tokens = torch.arange(start, min(count, start + BATCH))[:, None]
        first, last = (torch.tensor(part).expand(len(tokens), -1) for part in (ids[:before], ids[len(ids) - after :]))
        rows = torch.cat([first.long(), tokens, last.long()], dim=1)
        features = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
        if "token_type_ids" in sample:
            features["token_type_ids"] = torch.zeros_like(rows)
        output = encoder.transformer(features)
        found.append(encoder.pool(output, modules, len(rows), normalize=False))
    return torch.cat(found).numpy()


def _build_table(
    encoder: Encoder, product: torch.Tensor, tokenizer: Any, texts: Sequence[str], targets: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the table `(v, k)` of token vectors, fitted to the vectors `(n, k)` of texts; see the top of this file."""
    vectors = _encode_tokens(encoder)
    # The mean of the tokens is no mean of texts, so it takes the place of the vectors that the chain adds.
    prior = (vectors - vectors.mean(axis=0)) @ product.numpy().T
    inverse_ranks = 1 / np.arange(2, len(vectors) + 2)
    weights = SIF / (SIF + inverse_ranks / inverse_ranks.sum())
    ids = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return np.ascontiguousarray(fit_tokens(prior, weights, ids, targets) * weights[:, None], dtype=np.float32)


def fit_tokens(
    prior: NDArray[Any], weights: NDArray[np.float64], ids: Sequence[Sequence[int]], targets: NDArray[Any]
) -> NDArray[np.float64]:
    """Return token vectors `(v, k)` whose weighted means are near the texts' targets and which are near a prior's.

    Minimizes ‖X·B − Y‖² + λ·‖B − s·P‖² for the row X of a text, which holds the weights of its tokens divided by their
    number, and the scale s at which the prior P alone fits best. Tokens of no text stay at s·P.

    Args:
        prior: P, `(v, k)`.
        weights: weights of the tokens, `(v,)`.
        ids: tokens of each text.
        targets: Y, `(n, k)`.
    """
    from scipy.sparse import csr_matrix

    rows = np.repeat(np.arange(len(ids)), [len(of_text) for of_text in ids])
    tokens = np.fromiter((token for of_text in ids for token in of_text), np.int64)
    lengths = np.array([len(of_text) for of_text in ids])
    shares = csr_matrix((weights[tokens] / lengths[rows], (rows, tokens)), (len(ids), len(weights)))
    means = shares @ prior
    scaled = prior * ((means * targets).sum() / (means * means).sum())
    # In the dual: texts are fewer than tokens, so n equations in place of v.
    products = (shares @ shares.T).toarray()
    penalty = RIDGE * np.trace(products) / len(ids)
    found: NDArray[np.float64] = scaled + shares.T @ np.linalg.solve(
        products + penalty * np.eye(len(ids)), targets - shares @ scaled
    )
    return found


def _mean_of_tokens(tokenizer: Any, table: NDArray[np.float32], texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the mean of the table's rows for the tokens of each text, scaled to length 1, `(n, k)`."""
    means = np.stack([table[one.ids].mean(axis=0) for one in tokenizer.encode_batch(texts, add_special_tokens=False)])
    unit: NDArray[np.float32] = means / np.linalg.norm(means, axis=1, keepdims=True)
    return unit


def _write_modules(folder: Path, tokenizer: Any, table: NDArray[np.float32]) -> None:
    """Write tokenizer and table as a stock StaticEmbedding module, followed by a Normalize module."""
    names = ("StaticEmbedding", "Normalize")
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{name}", "type": STOCK + name}
        for index, name in enumerate(names)
    ]
    for module in modules:
        (folder / str(module["path"])).mkdir()
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (folder / "1_Normalize" / "config.json").write_text("{}\n")
    tokenizer.save(str(folder / "0_StaticEmbedding" / "tokenizer.json"))
    weights = {"embedding.weight": torch.from_numpy(table)}
    save_file(weights, folder / "0_StaticEmbedding" / "model.safetensors", metadata={"format": "pt"})


def certify_static(chain: Chain, encoder: Encoder, static: Encoder, texts: list[str], source: str) -> dict[str, Any]:
    """Measure a static model on texts that it was not fitted to, against the encoder and chain that it comes from.

    Returns:
        A JSON object: `{source, n_heldout, local_spearman, recall_at_10, recall_at_10_rescored_4x, positional_stress,
        bytes: {encoder, static}, texts_per_core_second: {encoder, static}}`. The measures compare neighbours of the
        static model with those of encoder and chain.
    """
    floats = _encode(chain, encoder, texts)
    timed = texts[:: max(1, len(texts) // TIMED_TEXTS)][:TIMED_TEXTS]
    rates = {
        "encoder": _measure_rate(lambda: _encode(chain, encoder, timed), len(timed)),
        "static": _measure_rate(lambda: static.encode(texts), len(texts)),
    }
    return {
        "source": source,
        "n_heldout": len(texts),
        **geometry_measures(floats, static.encode(texts).vectors),
        "bytes": {"encoder": encoder.model_bytes, "static": static.model_bytes},
        "texts_per_core_second": rates,
    }


def _measure_rate(work: Callable[[], object], count: int) -> float:
    """Return how many of `count` texts a second of CPU time `work` processes, with one thread of torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        work()
        begun = time.process_time()  # other processes do not count
        work()
        return count / max(time.process_time() - begun, 1e-9)
    finally:
        torch.set_num_threads(threads)


def _rename_certificate(path: Path) -> None:
    """Rename `certificate` in lathe.json to `certificate_of_chain`: the static model's is in certificate.json."""
    described = json.loads(path.read_text())
    renamed = {("certificate_of_chain" if key == "certificate" else key): value for key, value in described.items()}
    path.write_text(json.dumps(renamed, indent=1) + "\n")


def _format_usage(certificate: dict[str, Any]) -> str:
    """Return the Markdown text on how to load the model, and what it loses."""
    rates, sizes = certificate["texts_per_core_second"], certificate["bytes"]
    return (
        "A static model: the vector of a text is the mean of its tokens' vectors, whatever their order.\n\n"
        '```python\nfrom sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("path/to/this/'
        'folder")\nmodel.encode(["some text"])\n```\n\n'
        f"Fitted to {certificate['n_fit']} texts of {certificate['source']}, and measured on "
        f"{certificate['n_heldout']} others, against the encoder and\nthe chain that it comes from:\n\n"
        "| | encoder and chain | static |\n| --- | --- | --- |\n"
        f"| recall@10 of the neighbours of encoder and chain | 1 | {certificate['recall_at_10']:.3f} |\n"
        f"| the same, 40 candidates ranked again | 1 | {certificate['recall_at_10_rescored_4x']:.3f} |\n"
        f"| texts a second of CPU time | {rates['encoder']:.0f} | {rates['static']:.0f} |\n"
        f"| bytes of weights | {sizes['encoder']} | {sizes['static']} |\n\n"
        "It needs sentence-transformers 3.4 or newer. Its vectors are not comparable with those of encoder and chain."
    )
