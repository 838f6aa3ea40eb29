"""Encoding of texts by a loaded sentence-transformers model, in batches of similar length."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.encoder.batching import (
    Batch,
    Features,
    HostCopy,
    estimate_tokens,
    map_in_threads,
    move_to_device,
    prefetch,
    sort_longest_first,
    split_features,
    split_padded_batches,
)
from lathe.training.encoder.cutting import (
    PIECE,
    STATIC_CHARACTERS,
    Cut,
    TextCutter,
    build_too_long_error,
    split_at_spaces,
)
from lathe.training.encoder.devices import (
    PROBES,
    Agreement,
    convert_dtype,
    keep_freed_blocks,
    measure_agreement,
    resolve_dtype,
)
from lathe.training.encoder.fast_tokenizing import WordTokenizer, open_fast_tokenizer
from lathe.training.encoder.loading import (
    choose_attention,
    compute_fingerprint,
    convert_load_errors,
    load_with_chat_template,
    locate_model,
)
from lathe.training.encoder.long_texts import MARGIN_TOKENS, Pieces, split_texts
from lathe.training.encoder.model_checks import describe_default_pooling, find_first_position, find_smaller_vocabulary
from lathe.training.encoder.packing import try_packing, unpack_linear_layers
from lathe.training.encoder.prompts import (
    count_template_tokens,
    describe_chat_template,
    remove_chat_template,
    uses_chat_template,
)
from lathe.training.encoder.spec import EncoderSpec, LongText, Side
from lathe.training.encoder.text_encoder import Encoding, TextEncoder, check_finite
from lathe.training.encoder.unpadding import (
    NAME,
    attend_on_gpu,
    enable_unpadded,
    split_flat_batches,
    split_row,
    try_unpadding,
)
from lathe.training.errors import EncoderError, NotFiniteError, TooLongError, UnknownTokenError
from lathe.training.workspace import digest

BATCH_TOKENS = {"float32": 1024, "bfloat16": 2048, "float16": 2048}
"""Tokens of a forward pass on a CPU by dtype, padding included: what its caches hold. Measured with MiniLM on real
texts: 512 to 2,048 are alike; 16,384 (about what a batch of 32 long texts takes) runs at half the speed."""

DEVICE_BATCH_TOKENS = 16_384
"""Tokens of a forward pass on a GPU, padding included; a GPU needs many to be busy."""

BATCH_NUMBERS = 1 << 25
"""Tokens of a forward pass without padding on a GPU, times the dimensions of their vectors, at most four times
`DEVICE_BATCH_TOKENS`. On an H200, MiniLM takes .6 to .7 of the time with 65,536 tokens a pass instead of 16,384."""

SLACK_TOKENS = 100
"""Fixed cost of a forward pass on a CPU, in tokens (MiniLM: 86 to 140). Batches may have that much padding."""

MAX_BATCH_DIFFERENCE = 1e-3
"""Maximum difference between entries of the unit vectors, in float32, of a text alone and in a batch with longer texts.
Some models read padding, such as models with a CNN behind the transformer."""

MAX_LOSS_RATIO = 2
"""Maximum loss of cosine to float32 without padding on a GPU, relative to the loss of padded batches in the same dtype.
Two ways of rounding differ that much at the worst of a few texts. A wrong attention loses more."""

COMPARED_PARAMETERS = 1_000_000_000
"""Maximum number of parameters of a model that is also run in float32 for comparison; a larger one may not fit."""

WINDOW_BATCHES = 4
"""Number of batches whose texts are tokenized together and sorted by true length: little padding, little waiting."""

UNLIMITED = 1_000_000
"""`max_length` of static models, which look each token up and have no limit of their own."""

KNOWN_MODULES = ("sentence_transformers.", "lathe.")
"""Beginnings of the names of modules that are not a model's own code."""

log = logging.getLogger(__name__)


class Encoder(TextEncoder):
    """Encoder of texts by a loaded sentence-transformers model. It is not thread-safe, because its tokenizer is not.

    Attributes:
        model: the `SentenceTransformer`.
        device: name of the model's device.
        spec: the spec of the model, with dtype `auto` replaced by the dtype in use.
        given: the spec as it was passed.
        transformer: the first module of the model, which runs in the spec's dtype.
        heads: the modules after the transformer, which run in float32.
        dimensions: dimensions of the vectors.
        max_length: tokens that the model reads of a text, special tokens included.
        prompts: prompts by name.
        default_prompt_name: name of the prompt for texts that name none; None for none.
        fingerprint: see `lathe.training.encoder.loading`.
        queries: encoder of the queries if the model has separate modules for them, and this encoder then encodes
            documents; else None.
        batch_tokens: tokens of one forward pass, padding included.
        template_tokens: tokens that the model's chat template adds to each text; 0 without one.
        vocabulary: number of tokens that the model has vectors for, if its tokenizer has more; else None.
        warning: why the vectors may be poor; None if there is no reason.
        agreement: cosine of the vectors with the vectors in float32; None if the model cannot run in float32, because
            it is too large or uses flash attention.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        device: str | None = None,
        batch_tokens: int | None = None,
        model: Any = None,
    ) -> None:
        """Load the spec's model onto a device and run it on a few test texts, which takes seconds.

        A Hub id that is not cached is downloaded. The C allocator of the process is set to keep freed blocks. Poor
        pooling and chat templates are logged as warnings.

        Args:
            spec: model and settings.
            device: torch device; None chooses the default.
            batch_tokens: tokens of one forward pass, padding included; None chooses by device and dtype.
            model: the `SentenceTransformer`, if it is loaded already.

        Raises:
            EncoderError: if the model cannot be loaded, gives NaN or inf for ordinary texts in its dtype, or gives
                queries and documents different numbers of dimensions.
        """
        keep_freed_blocks()
        self.model, *others = load_with_chat_template(spec, device) if model is None else [model]
        self.queries: Encoder | None = None
        self.device = str(self.model.device)
        self.given = spec
        self.spec = replace(spec, dtype=resolve_dtype(spec.dtype, self.device))
        on_cpu = BATCH_TOKENS[self.spec.dtype]
        self.flash = choose_attention(spec, device) == "flash_attention_2"
        self.batch_tokens = batch_tokens or (on_cpu if self.device == "cpu" else DEVICE_BATCH_TOKENS)

        self.slack_tokens = SLACK_TOKENS if self.device == "cpu" else self.batch_tokens // 4
        with convert_load_errors(spec):
            self._describe_model()
            self._prepare_model()

        if batch_tokens is None and self.unpadded and self.device != "cpu":
            self.batch_tokens = max(self.batch_tokens, min(4 * self.batch_tokens, BATCH_NUMBERS // self.dimensions))

        for other in others:
            self.queries, self.routed = Encoder(spec, device, batch_tokens, other), True
            self.fingerprint = digest(self.fingerprint, self.queries.fingerprint)[:32]
            if self.queries.dimensions != self.dimensions:
                raise EncoderError(
                    f"{self.name} gives queries {self.queries.dimensions} dimensions and documents {self.dimensions}"
                )

    def _describe_model(self) -> None:
        """Set the attributes known without running the model, remove a template that is off, and log poor pooling."""
        wrapped = uses_chat_template(self.model)
        if self.spec.chat_template == "off":
            remove_chat_template(self.model, self.name)

        self.template_tokens = count_template_tokens(self.model)
        warnings = [describe_default_pooling(self.spec, self.model, locate_model(self.spec.model))]
        if wrapped and self.spec.chat_template is None:
            warnings.append(describe_chat_template(self.name, self.template_tokens))

        self.warning = "; ".join(filter(None, warnings)) or None
        if self.warning:
            log.warning(self.warning)

        self.dimensions = int(self.model.get_embedding_dimension() or 0)
        self.max_length = int(min(self.model.max_seq_length or 512, UNLIMITED))
        self.prompts: dict[str, str] = dict(self.model.prompts)
        self.default_prompt_name: str | None = self.model.default_prompt_name
        # After the template is removed: an encoder without it has other vectors, and so another fingerprint.
        self.fingerprint = compute_fingerprint(
            self.model,
            self.max_length,
            self.prompts,
            without_chat_template=wrapped and self.spec.chat_template == "off",
        )

    def _prepare_model(self) -> None:
        """Convert the model in place to the spec's dtype, run it on test texts, and compile it if set. NaN raises.

        All of it happens in place. The model is compiled only if the spec says so. The tokenizer pads on the right from
        now on, and the fast tokenizer and the cutter of long texts are set up. A test text that gives NaN or inf
        raises.

        Raises:
            NotFiniteError: if a test text gives NaN or inf.
        """
        self.transformer, *self.heads = self.model
        for module in self.heads:
            module.float()

        if not self.static and all(type(module).__module__.startswith(KNOWN_MODULES) for module in self.heads):
            # With padding on the left, positions depend on the other texts of a batch. Custom modules may take the
            # last token from the end, so a model with such a module keeps its padding side.
            self.model.tokenizer.padding_side = "right"

        # Set before the first encoding, which `_convert_and_compare` does.
        self.fast_tokenizer = None if self.static else open_fast_tokenizer(self.model)
        self.vocabulary = find_smaller_vocabulary(self.model)
        self.cutter = self.make_cutter()
        by_words = self.static and self.cutter is None and WordTokenizer.splits_at_spaces(self.model.tokenizer)
        self.words = WordTokenizer(self.model.tokenizer) if by_words else None
        self.first_position = 0
        self.padded_attention: str | None = None

        try:
            self.agreement = self._convert_and_compare()
        except NotFiniteError as error:
            raise error.at(
                f"the encoder {self.name} cannot be used, as {PROBES[error.position or 0]!r} shows"
            ) from None

        if self.spec.compile:
            model = self.transformer.auto_model  # its forward is called by name, past what Module.compile sets
            model.forward = torch.compile(model.forward, dynamic=True)

    @property
    def model_bytes(self) -> int:
        """Bytes of the model's weights and buffers."""
        own: int = sum(tensor.nbytes for tensor in self.model.state_dict().values())
        return own + (0 if self.queries is None else self.queries.model_bytes)

    def route(self, prompt_name: str | None) -> "Encoder":
        """Return the encoder whose modules encode texts with a prompt: `queries` for query prompts, else this encoder.

        If queries do not have separate modules, the result is this encoder for any prompt.
        """
        return self if self.queries is None or self.find_side(prompt_name) == "document" else self.queries

    @property
    def static(self) -> bool:
        """Whether the model is static: it looks each token up and reads texts of any length, as model2vec's do."""
        return not hasattr(self.transformer, "auto_model")

    def make_cutter(self) -> TextCutter | None:
        """Build the `TextCutter` of texts longer than the model reads. A static model without a limit gets None."""
        if not self.static:
            return TextCutter(self.model.tokenizer, self.max_length)

        limit = getattr(self.model.tokenizer, "truncation", None)  # some have one in their tokenizer's file
        if limit is None:
            return None

        from transformers import PreTrainedTokenizerFast

        wrapped = PreTrainedTokenizerFast(tokenizer_object=self.model.tokenizer)
        return TextCutter(wrapped, limit["max_length"])

    def _convert_and_compare(self) -> Agreement | None:
        """Convert the transformer in place to the spec's dtype, and compare vectors with float32. None if not compared.

        Large models and flash attention are only converted, and the result is None. If padding changes the vectors,
        `slack_tokens` becomes 0, so that batches hold texts of equal lengths only. With `attention` at `auto`, the
        model is switched to input without padding if its vectors stay the same; `first_position` and `padded_attention`
        are then set. Otherwise linear layers are packed for oneDNN if that is possible and accurate.

        Returns:
            The agreement of the vectors with float32; None for large models and flash attention, which are only
            converted.
        """
        large = sum(tensor.numel() for tensor in self.transformer.parameters()) > COMPARED_PARAMETERS
        if large or self.flash:  # neither can run in float32
            convert_dtype(self.transformer, getattr(torch, self.spec.dtype))
            return None

        self.transformer.float()
        # `reference` and `padded` are (probes, d): each probe alone, and all in padded batches.
        probe = partial(self.encode, long_text="truncate")  # also where long texts are refused
        reference = padded = probe(PROBES).vectors
        if not self.static:
            reference = np.concatenate([probe([text]).vectors for text in PROBES])

        if np.abs(padded - reference).max() > MAX_BATCH_DIFFERENCE:
            self.slack_tokens = 0

        if self.device == "cpu" and self.spec.attention == "auto":
            unpadded = try_unpadding(self.model, PROBES, alone=reference)
            if unpadded is not None:
                self.first_position, self.padded_attention = unpadded

        convert_dtype(self.transformer, getattr(torch, self.spec.dtype))

        def compare() -> Agreement:
            return measure_agreement(probe(PROBES).vectors, reference)

        if self.spec.compile or self.spec.trust_remote_code:  # compilers and a model's own code expect its own layers
            return compare()

        if self.device.startswith("cuda") and self.spec.attention == "auto" and self.spec.dtype != "float32":
            return self._unpad_on_gpu(compare)

        return try_packing(self.transformer, compare) or compare()

    def _unpad_on_gpu(self, compare: Callable[[], Agreement]) -> Agreement:
        """Switch the transformer on a GPU to unpadded input if vectors agree with float32, and return the agreement.

        The loss of cosine may be `MAX_LOSS_RATIO` times the loss with padding. If the loss is larger or the model
        fails, the previous attention is restored.

        Returns:
            The agreement with float32 of the input that was chosen.
        """
        padded, model = compare(), self.transformer.auto_model
        attention = str(model.config._attn_implementation)
        try:
            enable_unpadded(model, attend_on_gpu, f"{NAME}_gpu")
            self.first_position, self.padded_attention = find_first_position(model), attention
            agreement = compare()
            if 1 - agreement.min <= MAX_LOSS_RATIO * (1 - padded.min) + 1e-6:  # float32 itself loses up to 1e-6
                return agreement
        except Exception:  # models fail on unexpected input with errors of any class
            pass

        model.set_attn_implementation(attention)
        self.padded_attention = None
        return padded

    @property
    def window_tokens(self) -> int:
        """Number of tokens of the texts that are tokenized together.

        The window is one batch if a GPU needs no padding, else `WINDOW_BATCHES` batches, so that texts of similar
        length share a batch.
        """
        in_row = self.flash or (self.unpadded and self.device != "cpu")
        return self.batch_tokens * (1 if in_row else WINDOW_BATCHES)

    @property
    def unpadded(self) -> bool:
        """Whether batches go through the model without padding."""
        return self.padded_attention is not None

    def join_routes(self) -> Any:
        """Return the encoder's `SentenceTransformer`, or a new one with a `Router` if queries have separate modules."""
        if self.queries is None:
            return self.model

        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Router

        router = Router.for_query_document(list(self.queries.model), list(self.model), self.find_side(None))
        model = SentenceTransformer(modules=[router], device=self.device, prompts=self.prompts)
        model.default_prompt_name = self.default_prompt_name
        return model

    def restore_model(self) -> None:
        """Undo packed linear layers and unpadded attention of the model and of `queries`, in place, for an export."""
        unpack_linear_layers(self.transformer)
        if self.padded_attention is not None:
            self.transformer.auto_model.set_attn_implementation(self.padded_attention)
            self.padded_attention = None
        if self.queries is not None:
            self.queries.restore_model()

    def describe(self) -> dict[str, Any]:
        """Return the encoder's settings as a dict for the metadata of a fitted chain of transforms.

        Keys are the fields of `spec`, with `fingerprint`, `dimensions`, `max_length` and `prompts` of the loaded model.
        `given` holds the `max_length` and `prompts` of the spec as it was passed.
        """
        return self.spec.to_json() | {
            "fingerprint": self.fingerprint,
            "dimensions": self.dimensions,
            "max_length": self.max_length,
            "prompts": self.prompts,
            "given": {"max_length": self.given.max_length, "prompts": dict(self.given.prompts)},
        }

    def encode(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        long_text: LongText | None = None,
        truncation_side: Side = "right",
        normalize: bool = True,
        on_batch: Callable[[int], None] | None = None,
    ) -> Encoding:
        """Encode texts to float32 vectors `(n, d)` in the order given. A vector with NaN or inf raises.

        A long text is truncated, refused or divided into chunks, as `long_text` says. A text that is not Unicode, or
        whose vector is not finite, raises. The result also holds the number of tokens of each text and how many of them
        were cut off. Texts of similar length share a batch.

        Args:
            texts: any number of strings.
            prompt_name: one of `prompts`; None takes the model's default.
            long_text: what becomes of a text that is too long: it is truncated, raises, or is encoded as the mean of
                its chunks; None takes the setting of the spec.
            truncation_side: the end that is cut off; the prompt stays.
            normalize: whether vectors are L2-normalized; otherwise they are as the model returns them.
            on_batch: called after each batch with the number of texts done so far.

        Raises:
            TooLongError: for a text that is too long, if `long_text` is "error".
            TextError: for a text that is not Unicode.
            NotFiniteError: for a text whose vector holds NaN or inf.
            UnknownTokenError: for a text with a token that the model has no vector for.
            EncoderError: for an unknown prompt, or one string instead of a list.
        """
        if isinstance(texts, str):
            raise EncoderError(f"texts must be a list of strings, not one string: write [{texts!r:.80}]")

        self._require_unicode(texts)
        if (encoder := self.route(prompt_name)) is not self:
            prompt_name = self.default_prompt_name if prompt_name is None else prompt_name
            return encoder.encode(texts, prompt_name, long_text, truncation_side, normalize, on_batch)
        prompt = self.prompt(prompt_name)
        pieces = self.divide(texts, prompt, long_text or self.spec.long_text)
        # Batches come longest first; `rows` puts their vectors `(b, d)` back in the order of the pieces.
        vectors = np.empty((len(pieces.texts), self.dimensions), dtype=np.float32)
        tokens, cut = (np.zeros(len(pieces.texts), dtype=np.int64) for _ in range(2))
        done = padded = 0
        batches = self.batches(pieces.texts, prompt, truncation_side)

        with closing(self._run_batches(batches, normalize)) as results:
            for rows, batch, embeddings in results:
                vectors[rows], tokens[rows] = embeddings.wait(), batch.tokens
                cut[rows] = 0 if batch.cut is None else batch.cut
                padded += batch.padded
                done += len(rows)
                if on_batch:
                    on_batch(done * len(texts) // len(pieces.texts))

        joined, counts = pieces.join(torch.from_numpy(vectors), tokens, normalize)
        check_finite(joined.numpy(), self.spec)
        return Encoding(joined.numpy(), counts, padded, pieces.join_cut(cut))

    def divide(
        self,
        texts: Sequence[str],
        prompt: str | None,
        long_text: LongText,
        positions: Sequence[int] | None = None,
        limit: int | None = None,
    ) -> Pieces:
        """Divide texts into pieces: chunks if `long_text` is "mean", else whole texts. With "error", long texts raise.

        Chunks overlap. The pieces know the position of the text they belong to.

        Args:
            texts: the texts.
            prompt: text put before each piece, or None.
            long_text: what becomes of texts that are too long.
            positions: positions of the texts in the user's input, for messages; None counts them from 0.
            limit: maximum tokens of a text that is divided; None allows any number.

        Raises:
            TooLongError: for a text that is too long, if `long_text` is "error", or longer than the limit.
            EncoderError: if the model's tokenizer cannot divide texts, or the prompt leaves too little space.
        """
        if texts and long_text == "error":
            self._refuse_long_texts(texts, prompt or "", positions)

        if long_text != "mean" or not texts or self.cutter is None:  # a static model without a limit reads all
            return Pieces.whole(texts)

        tokenizer, max_length = self.cutter.tokenizer, self.cutter.wanted - 1
        if self.static:
            prompt_tokens = len(tokenizer(prompt or "", add_special_tokens=False)["input_ids"])
        else:
            prompt_tokens = self._count_prompt_tokens(prompt) + MARGIN_TOKENS

        return split_texts(texts, tokenizer, max_length - prompt_tokens, self.name, positions, limit)

    def _count_prompt_tokens(self, prompt: str | None) -> int:
        """Count the tokens the model reads in addition to a text's own: special tokens, prompt and chat template.

        Static models have no such count.
        """
        return int(self.model.preprocess(["."], prompt=prompt)["input_ids"].shape[-1]) - 1

    def batches(
        self, texts: Sequence[str], prompt: str | None, truncation_side: Side = "right"
    ) -> Iterator[tuple[NDArray[np.int64], Batch]]:
        """Tokenize texts, and yield batches of similar length, longest first, with the positions `(b,)` of the texts.

        Texts with about `window_tokens` tokens are tokenized at a time. Texts are cut to what the model reads.

        Args:
            texts: the texts.
            prompt: text put before each, or None.
            truncation_side: the end of a text that is cut off.
        """
        estimates = [estimate_tokens(text, self.max_length) for text in texts]
        order = np.array(sort_longest_first(estimates), dtype=np.int64)
        budget = self.window_tokens
        for bounds in split_padded_batches([estimates[index] for index in order], budget, slack=budget):
            window = order[bounds]
            for batch in self.tokenize([texts[index] for index in window], prompt, truncation_side):
                yield window[batch.rows], batch

    def _run_batches(
        self, batches: Iterable[tuple[NDArray[np.int64], Batch]], normalize: bool
    ) -> Generator[tuple[NDArray[np.int64], Batch, HostCopy], None, None]:
        """Run batches through the model, and yield each with the positions `(b,)` of its texts and its vectors.

        On a CPU, batches run in parallel on all threads. Static and compiled models and models with remote code run one
        batch at a time, since they may not be thread-safe. On another device, the next batch is tokenized and the
        vectors of the last batch are copied meanwhile.
        """
        if self.device != "cpu":
            last: tuple[NDArray[np.int64], Batch, HostCopy] | None = None
            for rows, batch in prefetch(batches):
                launched = rows, batch, HostCopy.begin(self.forward(batch, normalize))
                if last is not None:
                    yield last
                last = launched
            if last is not None:
                yield last
            return
        if self.static or self.spec.compile or self.spec.trust_remote_code:
            yield from ((rows, batch, HostCopy(self.forward(batch, normalize))) for rows, batch in batches)
            return
        with closing(map_in_threads(lambda item: self.forward(item[1], normalize), batches)) as results:
            yield from ((rows, batch, HostCopy(vectors)) for (rows, batch), vectors in results)

    def tokenize(self, texts: list[str], prompt: str | None, truncation_side: Side = "right") -> list[Batch]:
        """Tokenize texts behind a prompt, truncated to what the model reads, and return the texts in batches.

        A batch also holds how many tokens of its texts were cut off. For a static model all texts are one batch. For
        other models the tokenizer's truncation side stays changed.
        """
        cuts = [self.cut(text, prompt, truncation_side) for text in texts]
        length_ratios = [1.0 if cut.whole else len(text) / len(cut.text) for text, cut in zip(texts, cuts, strict=True)]
        texts = [cut.text for cut in cuts]
        batches = self._tokenize_cut(texts, prompt, truncation_side)
        return [self._count_cut(batch, texts, length_ratios, prompt) for batch in batches]

    def _count_cut(self, batch: Batch, texts: list[str], length_ratios: list[float], prompt: str | None) -> Batch:
        """Return a batch with the number of unread tokens of each text, or the batch itself if all are read in full.

        Counts of texts that were tokenized in part are scaled up to the whole text.

        Args:
            batch: tokenized texts.
            texts: texts tokenized together, cut to the part that is tokenized.
            length_ratios: length of the whole text divided by the length of the tokenized part, for each text.
            prompt: text put before each text, or None.
        """
        if self.cutter is None:
            totals = batch.tokens * np.array([length_ratios[row] for row in batch.rows])
            return replace(batch, cut=totals.astype(np.int64) - batch.tokens)

        full = np.flatnonzero(batch.tokens >= self.cutter.wanted - 1 - MARGIN_TOKENS)
        if not len(full):
            return batch

        rows = batch.rows[full]
        counts = self._count_tokens([(prompt or "") + texts[row] for row in rows])
        # Only a part of a long text was tokenized: its tokens are scaled up to the whole text.
        totals = np.array([count * length_ratios[row] for count, row in zip(counts, rows, strict=True)])
        cut = np.zeros(len(batch.rows), dtype=np.int64)
        cut[full] = np.maximum(totals.astype(np.int64) - batch.tokens[full], 0)

        return replace(batch, cut=cut)

    def _count_tokens(self, texts: list[str]) -> list[int]:
        """Count the tokens of each text without truncation, including special tokens and the chat template."""
        if self.fast_tokenizer is not None:
            return self.fast_tokenizer.count_tokens(texts)

        ids = (self.cutter or self.model).tokenizer(texts, truncation=False, verbose=False)["input_ids"]
        return [len(tokens) + self.template_tokens for tokens in ids]

    def _tokenize_cut(self, texts: list[str], prompt: str | None, truncation_side: Side) -> list[Batch]:
        """Tokenize texts that are already cut, and return batches. A token without a vector raises.

        The tokenizer's truncation side stays changed. A token that the model has no vector for raises
        `UnknownTokenError`.
        """
        if self.static:  # a static model takes the tokens of all texts in one row
            features = self._tokenize_pieces(texts, prompt)
            self._require_known_tokens(features)
            ends = [*features["offsets"][1:].tolist(), len(features["input_ids"])]
            tokens = np.diff([0, *ends]).astype(np.int64)
            return [Batch(np.arange(len(texts)), features, tokens, int(tokens.sum()))]

        if truncation_side == "left" and prompt:
            texts, truncation_side = self._cut_behind_prompt(texts, prompt), "right"
        self.model.tokenizer.truncation_side = truncation_side
        if self.fast_tokenizer is not None and texts and self.unpadded:
            features, lengths = self.fast_tokenizer.tokenize_in_row(texts, prompt)
            self._require_known_tokens(features)
            return list(split_row(features, lengths, self.batch_tokens, self.first_position))

        if self.fast_tokenizer is not None and texts:
            features = self.fast_tokenizer.tokenize(texts, prompt)
        else:
            features = self.model.preprocess(texts, prompt=prompt)
        self._require_known_tokens(features)
        if self.unpadded:
            return list(split_flat_batches(features, self.batch_tokens, self.first_position))

        return list(split_features(features, self.batch_tokens, self.slack_tokens, self.model.tokenizer.padding_side))

    def _cut_behind_prompt(self, texts: list[str], prompt: str) -> list[str]:
        """Cut texts at the beginning so that prompt and text fit, and return the texts. Without offsets, none is cut.

        Truncation from the left by the tokenizer would remove the prompt first. Texts stay whole if the tokenizer
        reports no offsets or the prompt leaves no space.
        """
        assert self.cutter is not None
        # The cutter wants one token more than the model reads.
        limit = self.cutter.wanted - 1 - self._count_prompt_tokens(prompt)
        encodings = self.cutter.tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False).encodings
        if limit < 1 or not encodings:
            return texts
        return [
            text if len(encoding.ids) <= limit else text[encoding.offsets[-limit][0] :]
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _require_known_tokens(self, features: Features) -> None:
        """Raise `UnknownTokenError` if the tokenizer gave a token that the model has no vector for."""
        if self.vocabulary is None or not features["input_ids"].numel():
            return
        highest = int(features["input_ids"].max())
        if highest >= self.vocabulary:
            tokenizer = self.model.tokenizer
            token = tokenizer.id_to_token(highest) if self.static else tokenizer.convert_ids_to_tokens(highest)
            raise UnknownTokenError(f"a text has the token {token!r}, for which {self.name} has no vector")

    def cut(self, text: str, prompt: str | None = None, truncation_side: Side = "right") -> Cut:
        """Cut a long text to a part with all tokens that the model reads behind a prompt. A short text stays whole.

        A static model with a limit of its own is cut at the end that its tokenizer names, whatever `truncation_side`
        is. A static model without a limit reads `STATIC_CHARACTERS` characters.

        Args:
            text: any text.
            prompt: text that is put before `text`; it is not part of the result.
            truncation_side: the end that is cut off.
        """
        if self.cutter is not None:
            if self.static:
                truncation_side = self.model.tokenizer.truncation["direction"].lower()
            return self.cutter.cut(text, prompt or "", truncation_side)
        if len(text) <= STATIC_CHARACTERS:
            return Cut(text, whole=True)

        part = text[:STATIC_CHARACTERS] if truncation_side == "right" else text[-STATIC_CHARACTERS:]
        return Cut(part, whole=False)

    def _tokenize_pieces(self, texts: list[str], prompt: str | None) -> Features:
        """Tokenize texts for a static model, long texts in pieces: a text of a megabyte at once would take 300 MB.

        Returns:
            The model's input: the token ids of all texts in a row, and the offset at which each text begins.
        """
        if self.cutter is not None or all(len(text) <= PIECE for text in texts):
            if self.words is None:
                features: Features = self.model.preprocess(texts, prompt=prompt)
                return features
            rows = self.words.tokenize([prompt + text for text in texts] if prompt else texts)
            starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
            tokens = np.fromiter(chain.from_iterable(rows), np.int64)
            return {"input_ids": torch.from_numpy(tokens), "offsets": torch.from_numpy(starts)}

        ids = [
            torch.cat([self.model.preprocess([piece])["input_ids"] for piece in split_at_spaces((prompt or "") + text)])
            for text in texts
        ]
        starts = np.cumsum([0, *(len(tokens) for tokens in ids[:-1])])
        return {"input_ids": torch.cat(ids), "offsets": torch.from_numpy(starts)}

    @torch.inference_mode()
    def forward(self, batch: Batch, normalize: bool) -> torch.Tensor:
        """Run one batch through the whole model, without gradients, and return its vectors `(b, d)` as float32.

        The vectors stay on the model's device. They are L2-normalized if `normalize` is set.
        """
        features = self.run_transformer(batch)
        for module in self.heads:
            features = module(features)

        # A flattened batch may end with a dummy text that fills it up to a round number of tokens.
        embeddings: torch.Tensor = features["sentence_embedding"][: len(batch.rows)].float()
        return torch.nn.functional.normalize(embeddings, dim=1) if normalize else embeddings

    def run_transformer(self, batch: Batch) -> dict[str, Any]:
        """Run one batch through the transformer alone, and return its output tensors by name, before pooling.

        Token and sentence embeddings in the output are float32.
        """
        device, inputs = self.model.device, batch.features.items()
        on_device = {k: move_to_device(v, device) if isinstance(v, torch.Tensor) else v for k, v in inputs}
        features: dict[str, Any] = self.transformer(on_device)
        for name in ("token_embeddings", "sentence_embedding"):
            if name in features:  # pooling in bfloat16 would give norms with errors of 1e-3
                features[name] = features[name].float()
        return features

    def _refuse_long_texts(self, texts: Sequence[str], prompt: str, positions: Sequence[int] | None = None) -> None:
        """Raise `TooLongError` for the first text that has more tokens than the encoder reads, counted with the prompt.

        Static models with a limit of their own are not checked.

        Args:
            texts: the texts.
            prompt: text put before each.
            positions: positions of the texts in the user's input, for messages; None counts them from 0.
        """
        if self.static and self.cutter is not None:
            return

        cuts = [self.cut(text, prompt) for text in texts]
        counts = [0] * len(texts)
        if not self.static:
            counts = self._count_tokens([prompt + cut.text for cut in cuts])

        for position, text, cut, count in zip(positions or range(len(texts)), texts, cuts, counts, strict=True):
            if not cut.whole:
                raise build_too_long_error(position, text, self.name, self.max_length)
            if count > self.max_length:
                raise TooLongError(
                    f"input {position} has {count} tokens, more than the {self.max_length} that {self.name} reads; "
                    "shorten it or allow truncation"
                )
