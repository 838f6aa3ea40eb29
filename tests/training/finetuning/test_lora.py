"""LoRA adapters, and encoders that pool the last token."""

import sys
from dataclasses import replace

import numpy as np
import orjson
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.errors import JobError
from lathe.training.finetuning.job import TrainingJob

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
TEXTS = ["the ledger is closed", "rain", "a committee on the hill, in spring, about the interest of a bank"]
TRAINING = {"precision": "float32", "batch_size": 4, "log_steps": 2, "checkpoint_steps": 2, "max_length": 12}
TRAINING |= {"learning_rate": 1e-2}
LORA = {"rank": 4, "target_modules": ["query", "value"]}
INSTRUCTION = "Instruct: Given a question, find what answers it\nQuery: "


@pytest.fixture
def job_of(tmp_path):
    """Return a function that builds a job on twelve triplets with the given training settings."""

    def build(**given):
        path = tmp_path / "pairs.jsonl"
        rows = [
            {
                "anchor": f"what of {WORDS[n % 10]}?",
                "positive": f"{WORDS[n % 7]} of {n}",
                "negative": WORDS[(n + 1) % 10],
            }
            for n in range(12)
        ]
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        source = {"jsonl": path, "prompts": {"anchor": INSTRUCTION}}
        return TrainingJob.model_validate({"sources": [source], "training": TRAINING | {"lora": LORA} | given})

    return build


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """Save a random decoder of two layers that pads on the left and pools the last token, and return its spec."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import AutoTokenizer, Qwen2Config, Qwen2Model, set_seed

    from lathe.training.encoder.loading import locate_model

    folder = tmp_path_factory.mktemp("decoder")
    tokenizer = AutoTokenizer.from_pretrained(locate_model(DEFAULT_ENCODER.model), padding_side="left")
    set_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    Qwen2Model(config).save_pretrained(folder / "decoder")
    tokenizer.save_pretrained(folder / "decoder")
    transformer = Transformer(str(folder / "decoder"), max_seq_length=48)
    SentenceTransformer(modules=[transformer, Pooling(16), Normalize()]).save(str(folder / "model"))
    return EncoderSpec(name="decoder", model=str(folder / "model"), pooling="lasttoken", dtype="float32")


def vectors_of(model):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(model), device="cpu").encode(TEXTS, normalize_embeddings=True)


def weights_of(model):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(model), device="cpu").state_dict()


@pytest.mark.release
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_lora_adapters_are_merged_into_the_model_and_exported_beside_the_model(job_of, run_job, tmp_path):
    from peft import PeftModel
    from sentence_transformers import SentenceTransformer

    from lathe.training.encoder.loading import locate_model

    outcome = run_job(job_of(lora=LORA | {"keep_adapter": True}), "reze", spec=DEFAULT_ENCODER)
    kept = {path.name for path in (tmp_path / "out" / "adapter").iterdir()}
    assert kept == {"adapter_config.json", "adapter_model.safetensors"}
    base = locate_model(DEFAULT_ENCODER.model)
    before, after = weights_of(base), weights_of(outcome.model)
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed and all(".query.weight" in name or ".value.weight" in name for name in changed)
    rank = np.linalg.matrix_rank((after[min(changed)] - before[min(changed)]).numpy(), tol=1e-4)
    assert 1 <= rank <= LORA["rank"]
    adapted = SentenceTransformer(base, device="cpu")
    PeftModel.from_pretrained(adapted[0].auto_model, str(tmp_path / "out/adapter"))
    np.testing.assert_allclose(adapted.encode(TEXTS), vectors_of(outcome.model), atol=1e-5)
    assert orjson.loads((tmp_path / "out/adapter/adapter_config.json").read_bytes())["base_model_name_or_path"] == (
        DEFAULT_ENCODER.model
    )


@pytest.mark.release
def test_lora_training_resumes_from_a_checkpoint_of_adapters_alone(job_of, run_job, tmp_path):
    whole = run_job(job_of(epochs=2), "reze", "whole")
    with pytest.raises(KeyboardInterrupt):
        run_job(job_of(epochs=2), "reze", "stopped", stop_at=6)
    checkpoint = tmp_path / "stopped" / "training" / "checkpoint-4"
    assert (checkpoint / "adapter.safetensors").is_file() and not (checkpoint / "model.safetensors").exists()
    again = run_job(job_of(epochs=2), "reze", "stopped")
    assert again.summary["resumed_from"] == 4
    np.testing.assert_allclose(vectors_of(again.model), vectors_of(whole.model), atol=1e-6)


def test_lora_refuses_unknown_target_modules_and_lists_the_models(job_of, run_job):
    with pytest.raises(JobError, match="no layers called q_proj; target_modules may name query, key, value, dense"):
        run_job(job_of(lora={"target_modules": ["q_proj"]}), "reze")


def test_lora_without_peft_is_refused_and_the_extra_is_named(job_of, run_job, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(JobError, match=r"needs peft: pip install 'lathe-training\[lora\]'"):
        run_job(job_of(), "reze")


def test_a_decoder_trained_with_lora_keeps_last_token_pooling_and_left_padding(job_of, run_job, decoder):
    from sentence_transformers import SentenceTransformer

    lora = LORA | {"target_modules": ["q_proj", "v_proj"]}
    outcome = run_job(job_of(lora=lora, mini_batch_size=2, max_length=32), "reze", spec=decoder)
    assert outcome.mixture.anchors[0].startswith(INSTRUCTION) and outcome.mixture.negatives[0] == ("lathe",)
    trained = SentenceTransformer(str(outcome.model), device="cpu")
    assert trained[1].pooling_mode == "lasttoken" and trained.tokenizer.padding_side == "left"
    served = Encoder(replace(decoder, model=str(outcome.model), pooling=None), "cpu").encode(TEXTS).vectors
    np.testing.assert_allclose(served, vectors_of(outcome.model), atol=1e-5)
    assert np.abs(served - Encoder(decoder, "cpu").encode(TEXTS).vectors).max() > 1e-4
