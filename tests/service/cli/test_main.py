import json
import os
from importlib.metadata import version

import fsspec
import numpy as np
import pyarrow.parquet
import pytest
import typer
from fsspec.implementations.memory import MemoryFileSystem

from lathe.service.chains.registry import STARTERS, Registry
from lathe.service.cli.fit import format_fit_result
from lathe.service.cli.main import app
from lathe.training.fitting import encoded_shards
from lathe.training.sources.source import open_source
from tests.helpers import require_one_line


@pytest.fixture(scope="module")
def texts(tmp_path_factory, paragraphs):
    """Write 100 texts with ids to a JSON-lines file and return its path."""
    path = tmp_path_factory.mktemp("texts") / "some.jsonl"
    path.write_text("\n".join(json.dumps({"id": i, "text": t}) for i, t in enumerate(paragraphs[:100])))
    return path


def test_fit_embed_and_reduce_give_the_same_vectors_from_file_to_file(run, texts, tmp_path):
    fit = ("fit", "--name", "mine", "--source", texts, "--steps")
    status, out, _ = run(*fit, "geopres:16,nested=true,steps=5")
    assert status == 0 and all(f"recall_at_10, cut to {size}" in out for size in (4, 8, 12))
    steps = "r2,geopres:24,nested=true,steps=20"
    status, out, _ = run(*fit, steps, "--transform", tmp_path / "fitted.npy", "--promote", "--json")
    assert status == 0
    result = json.loads(out)
    assert result["chain"] == "mine@2" and result["promoted"]

    assert run("embed", "--source", texts, "--out", tmp_path / "raw.npy")[0] == 0
    assert run("embed", "--source", texts, "--out", tmp_path / "small.jsonl", "--chain", "mine")[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "small.jsonl").read_text().splitlines()]
    embedded = np.array([row["embedding"] for row in rows])
    assert [row["id"] for row in rows] == list(range(100)) and rows[0]["text"]
    np.testing.assert_allclose(embedded, np.load(tmp_path / "fitted.npy"), atol=1e-5)

    assert run("reduce", "--source", tmp_path / "raw.npy", "--out", tmp_path / "small.npy", "--chain", "mine")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "small.npy"), embedded, atol=1e-5)

    arguments = ["--source", f"{tmp_path / 'small.jsonl'}#embedding", "--out", tmp_path / "x.npy", "--chain", "mine"]
    status, _, err = run("reduce", *arguments)
    assert status == 1 and "384" in err

    status, _, err = run("embed", "--source", texts, "--out", tmp_path / "eight.parquet", "--dimensions", 8)
    assert status == 0 and "× 8 through compact@1" in err
    batch = next(open_source(f"{tmp_path / 'eight.parquet'}#embedding").batches())
    assert batch.values.shape == (100, 8) and batch.records[3]["id"] == 3


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".jsonl"])
def test_reduce_writes_integer_codes_and_other_fields(run, tmp_path, suffix):
    vectors, out = np.random.default_rng(0).normal(size=(30, 384)).astype(np.float32), tmp_path / f"codes{suffix}"
    rows = [{"id": number, "vector": row.tolist()} for number, row in enumerate(vectors)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    status, _, err = run("reduce", "--source", f"{tmp_path / 'rows.jsonl'}#vector", "--chain", "codes48", "--out", out)
    assert status == 0 and "30 × 384 through codes48@1" in err
    if suffix == ".npy":
        codes = np.load(out)
        assert codes.dtype == np.uint8
    else:
        is_parquet = suffix == ".parquet"
        found = (
            pyarrow.parquet.read_table(out).to_pylist() if is_parquet else map(json.loads, out.read_text().splitlines())
        )
        ids, codes = zip(*((row["id"], row["embedding"]) for row in found), strict=True)
        assert list(ids) == list(range(30)) and {type(number) for row in codes for number in row} == {int}
    np.testing.assert_array_equal(codes, Registry(STARTERS, shipped=True).load("codes48").chain.transform(vectors))


def test_a_fit_below_a_gate_says_so_and_no_output_contains_the_sources_folder(run, texts):
    status, out, _ = run("fit", "--name", "gated", "--steps", "r2", "--source", texts, "--gate", "recall_at_10=1.1")
    assert status == 0 and "fails recall_at_10" in out
    status, shown, _ = run("chains", "show", "gated@1")
    assert json.loads(shown)["provenance"]["source"] == "some.jsonl"
    assert str(texts.parent) not in out + shown


def test_commands_print_one_line_and_exit_1_for_invalid_arguments(run):
    fit = ["fit", "--name", "a", "--source", "pydoc:", "--steps"]
    for arguments, words in [
        (["fit", "--name", "a/b", "--steps", "r2", "--source", "pydoc:"], "cannot name a chain"),
        ([*fit, "nobody"], "unknown kind"),
        ([*fit, "geopres:500"], "more than 500 dimensions, not 384"),
        (["fit", "--name", "a", "--steps", "r2", "--source", "/nowhere.jsonl"], "no file or folder"),
        ([*fit, "r2", "--gate", "nobody=1"], "no gate"),
        ([*fit, "r2", "--gate", "recall_at_10"], "KEY=VALUE"),
        (["chains", "show", "nobody"], "no chain"),
        (["chains", "promote", "compact"], "name a version"),
        (["embed", "--source", "pydoc:", "--out", "x.csv"], ".jsonl"),
        (["embed", "--source", "pydoc:", "--out", "x.npy", "--chain", "nobody"], "no chain"),
        (["embed", "--source", "pydoc:", "--out", "x.npy", "--encoder", "/nowhere/model"], "cannot be loaded"),
        (["reduce", "--source", "pydoc:", "--out", "x.npy", "--chain", "compact"], "holds texts: use lathe embed"),
    ]:
        require_one_line(run(*arguments), words)


def test_fit_exits_1_if_the_state_folder_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = run("fit", "--name", "a", "--steps", "r2", "--source", "pydoc:", LATHE_HOME=tmp_path / "file/home")
    assert status == 1 and "cannot be written" in err


def test_embed_continues_after_a_kill_and_starts_over_for_another_source(
    run, paragraphs, tiny_model, tmp_path, monkeypatch
):
    encode, encoded, stops = encoded_shards._encode_batch, [], [2]

    def count(batch, *rest):
        if stops and len(encoded) == stops[0]:
            raise RuntimeError("killed")
        encoded.append(len(batch))
        return encode(batch, *rest)

    monkeypatch.setattr(encoded_shards, "_encode_batch", count)
    rows = [{"id": i, "text": f"{i} {paragraphs[i % 50][:40]}" if i % 100 else " "} for i in range(2100)]
    source, out, partial = (tmp_path / name for name in ("rows.jsonl", "out.parquet", ".out.parquet.partial"))
    source.write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setenv("LATHE_ENCODERS", json.dumps([{"name": "tiny", "model": str(tiny_model)}]))
    command = ("embed", "--source", source, "--encoder", "tiny", "--out")
    with pytest.raises(RuntimeError, match="killed"):
        run(*command, out)
    assert encoded == [1024, 1024] and not out.exists() and not partial.exists()
    partial.touch()  # which a killed process leaves

    stops.clear()
    status, _, err = run(*command, out)
    assert status == 0 and "continuing from what an earlier run encoded" in err and encoded == [1024, 1024, 52]
    assert run(*command, tmp_path / "undisturbed.parquet")[0] == 0
    assert out.read_bytes() == (tmp_path / "undisturbed.parquet").read_bytes() and not partial.exists()

    encoded.clear()
    stops.append(1)
    with pytest.raises(RuntimeError, match="killed"):
        run(*command, out)
    partial.touch()
    stops.clear()
    source.write_text("\n".join(map(json.dumps, rows[:50])))
    status, _, err = run(*command, out)
    assert status == 0 and "starting over: the source or the encoder is not that of the run that stopped" in err
    assert sum(len(batch) for batch in open_source(f"{out}#embedding").batches()) == 50


def test_embed_finds_a_source_that_changes_while_it_is_encoded(run, paragraphs, tmp_path, monkeypatch):
    source, encode = tmp_path / "rows.txt", encoded_shards._encode_batch
    source.write_text("\n".join(paragraphs[:20]))

    def change(batch, *rest):
        source.write_text("\n".join(paragraphs[20:60]))
        return encode(batch, *rest)

    monkeypatch.setattr(encoded_shards, "_encode_batch", change)
    status, _, err = run("embed", "--source", source, "--out", tmp_path / "out.npy")
    assert status == 1 and "the source changed while it was encoded" in err
    assert list(tmp_path.iterdir()) == [source]


class Interrupted(MemoryFileSystem):
    """Files that can be looked into. Somebody presses Ctrl-C while they are fetched."""

    protocol = "interrupted"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("interrupted://", "memory://"))

    def get_file(self, _path, _local, **_options):
        raise KeyboardInterrupt


def test_an_interrupted_fit_exits_130_and_says_what_is_stored(run, texts):
    fsspec.register_implementation("interrupted", Interrupted, clobber=True)
    fsspec.filesystem("memory").pipe("/interrupted/some.jsonl", texts.read_bytes())
    source = "interrupted://interrupted/some.jsonl"
    status, _, err = run("fit", "--name", "mine", "--steps", "r2", "--source", source)
    assert status == 130
    assert "what was encoded or trained is stored" in err


def test_only_addresses_of_servers_are_environment_variables_too():
    def options(command):
        for below in getattr(command, "commands", {}).values():
            yield from options(below)
        yield from command.params

    read = {option.envvar for option in options(typer.main.get_command(app)) if option.envvar}
    assert read == {"LATHE_HOST", "LATHE_PORT", "LATHE_RAY_ADDRESS", "LATHE_POSTGRES_URL", "LATHE_SERVER"}


def test_version_option_prints_the_versions_of_lathe_and_of_torch(run):
    status, out, err = run("--version", OPENBLAS_THREAD_TIMEOUT="10")
    assert os.environ["OPENBLAS_THREAD_TIMEOUT"] == "10"  # which the user chose
    lathe, libraries = out.splitlines()
    assert (status, err) == (0, "")
    assert lathe.startswith(f"lathe {version('lathe-service')}")
    assert libraries.endswith(f", torch {version('torch')}")


def test_fit_with_bad_shards_skip_leaves_out_damaged_files_and_names_them(run, tmp_path):
    """Without the option a damaged file ends the fit. An unknown value is refused."""
    folder = tmp_path / "shards"
    folder.mkdir()
    rows = np.random.default_rng(0).standard_normal((90, 8)).astype(np.float32)
    (folder / "a.npy").write_bytes(b"no array")
    np.save(folder / "b.npy", rows)
    np.save(folder / "c.npy", rows[:0])
    arguments = ["fit", "--name", "sharded", "--steps", "r2", "--source", folder]
    status, _, err = run(*arguments)
    assert status == 1 and "a.npy is not a .npy file" in err
    status, out, _ = run(*arguments, "--bad-shards", "skip")
    assert status == 0
    assert "Warning: a.npy was left out: a.npy is not a .npy file" in out
    assert "Warning: c.npy holds no rows" in out
    status, _, err = run(*arguments, "--bad-shards", "repair")
    assert status != 0 and "refuse" in err


def test_fit_command_prints_the_codes_that_were_tried_and_what_each_was_compared_with():
    def trial(kind, weighting, ahead):
        return {"kind": kind, "weighting": weighting, "rows": 4000, "retrieval": 71.5, "ahead": ahead, "ci95": 0.75}

    tried = [trial("codes", 0.5, 0.0), trial("codes", 0.0, 1.25), trial("product_codes", 0.0, -0.5)]
    codes = {"kind": "codes", "weighting": 0.0, "chosen_by": "split-half retrieval", "tried": tried, "not_tried": {}}
    measures = dict.fromkeys(("local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"))
    sides = dict.fromkeys(("mean_norm", "isoscore", "bytes_per_vector"), {"before": 1, "after": 1})
    certificate = measures | sides | {"n_fit": 4000, "n_heldout": 1000, "out_of_domain": {}, "warnings": []}
    result = {"chain": "a@1", "failed_gates": [], "promoted": True, "size_routes": []}
    text = format_fit_result(result | {"certificate": certificate | {"codes": codes}})
    table = [line.split() for line in text.splitlines() if "4,000" in line and "weighting" in line]
    assert [(line[0], line[2], line[4], " ".join(line[6:-1])) for line in table] == [
        ("codes,", "0.5", "+0.00", "first row"),
        ("codes,", "0", "+1.25", "first row"),
        ("product_codes,", "0", "-0.50", "chosen row above"),
    ]
    assert "Not tried" not in text
