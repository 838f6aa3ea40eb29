"""`lathe push` and `lathe pull` against a hub on this machine."""

import hashlib
import json
import time
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from sentence_transformers import SentenceTransformer

from lathe.service.chains.hub import require_inner_path
from lathe.service.chains.registry import STARTERS, Registry
from lathe.service.chains.sharing import SUMS
from lathe.service.errors import BadValueError
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.export.folder import SHIPPED
from lathe.training.export.sentence_transformers_folder import export_sentence_transformers
from lathe.transforms import Chain, parse_steps
from lathe.transforms.artifact import DISTRIBUTION, FitDistribution
from lathe.transforms.artifact.folder import manifest_digest
from tests.helpers import find_free_port
from tests.service.chains.hub_server import HubServer, sha_of

TOKEN = "hf_nobody_may_read_this"
REPO = "me/small"

# The library's own call, when it uploads a file.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture
def hub(monkeypatch):
    """Serve an empty hub that the library asks in place of the real one."""
    server = HubServer()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hasty = SimpleNamespace(**(vars(time) | {"sleep": lambda _seconds: None}))  # between tries of a download
    monkeypatch.setattr("huggingface_hub.file_download.time", hasty)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def other(tmp_path):
    """Return the state folder that chains are pulled to."""
    return tmp_path / "other"


@pytest.fixture
def pull(run, hub, other):
    """Return a function that pulls to the other state folder."""
    return lambda *arguments, **variables: run("pull", *arguments, LATHE_HOME=other, **variables)


@pytest.fixture
def small(home):
    """Publish a chain with the distribution of its rows, once, and return it."""
    registry = Registry(home / "chains")
    if "small" not in registry.names():
        rows = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32) + 1
        chain = Chain(parse_steps("r2,pca:4")).fit(rows)
        chain.metadata = {"encoder": {"name": "e5", "model": "intfloat/e5", "fingerprint": "e" * 32}}
        registry.publish(chain, "small", None, distribution=FitDistribution.measure(rows, rows, None))
    return registry.read("small", 1)


def assert_fails(result, *words):
    """Assert that a command failed with one line that has all words and not the token."""
    status, out, err = result
    assert status == 1 and out == "" and TOKEN not in err
    assert err.startswith("lathe: ") and len(err.strip().splitlines()) == 1
    assert all(word in err for word in words), err


def names_in(other):
    return set(Registry(other / "chains").names()) - {"debias", "compact", "codes48"}


def test_a_pushed_chain_is_pulled_bit_equal_from_the_commit(run, hub, pull, other, small):
    status, out, err = run("push", "small", REPO)
    assert status == 0 and out.strip() == f"{hub.url}/{REPO}/commit/{sha_of(1)}", err
    assert set(hub.files(REPO)) == {"manifest.json", "chain.safetensors", "README.md"}

    status, out, err = pull(REPO)

    assert status == 0 and out.strip() == "small@1: live" and f"{REPO}, commit {sha_of(1)}, for the encoder e5" in err
    pulled = Registry(other / "chains").read("small", 1)
    rows = np.random.default_rng(1).normal(size=(9, 8)).astype(np.float32)
    np.testing.assert_array_equal(pulled.transform(rows), small.transform(rows))
    assert pulled.metadata["pulled_from"] == {"repository": REPO, "commit": sha_of(1)}
    assert pulled.metadata["encoder"] == small.metadata["encoder"]

    # A second time changes nothing, and another chain of the name becomes a version that is not live.
    assert run("push", "small@1", REPO)[1] == f"{hub.url}/{REPO}/commit/{sha_of(1)}\n" and len(hub.repos[REPO]) == 1
    assert pull(REPO)[1] == "small@1 is the same chain already: live\n"
    assert Registry(other / "chains").versions("small") == [1]
    assert pull(REPO, "--as", "compact")[1].startswith("compact@2: not live, which `lathe chains promote compact@2`")
    registry = Registry(other / "chains")
    assert registry.versions("compact") == [1, 2] and registry.live("compact") == 1
    assert_fails(pull(REPO, "--as", "../x"), "cannot name a chain")


def test_the_distribution_of_the_fitted_rows_is_pushed_only_if_asked_for(run, hub, pull, other, small):
    assert run("push", "small", REPO)[0] == 0
    assert b"reference" not in hub.files(REPO)["manifest.json"] and DISTRIBUTION not in hub.files(REPO)
    assert run("push", "compact", "me/compact", "--statistics")[0] == 0
    assert pull("me/compact", "--as", "again")[0] == 0
    shipped = STARTERS / "compact" / "1"
    assert FitDistribution.load(other / "chains/again/1").payload == FitDistribution.load(shipped).payload


def test_a_pull_takes_the_revision_that_is_named(run, hub, pull, other, small):
    assert run("push", "small", REPO)[0] == 0
    first = hub.files(REPO)
    assert run("push", "debias", REPO)[0] == 0
    assert pull(REPO, "--revision", sha_of(1), "--as", "pinned")[0] == 0
    assert Registry(other / "chains").read("pinned", 1).metadata["tensors_sha256"] in first["manifest.json"].decode()
    assert_fails(pull(REPO, "--revision", "f" * 40), "no such revision")


def test_the_card_states_the_certificate_and_the_base_model_and_shows_a_figure_of_several_sizes(run, hub, small):
    assert run("push", "compact", "me/compact", "--license", "cc0-1.0", "--private")[0] == 0
    assert hub.private == {"me/compact"}
    files = hub.files("me/compact")
    _, header, text = files["README.md"].decode().split("---\n", 2)
    said = yaml.safe_load(header)
    assert said["library_name"] == "lathe" and said["license"] == "cc0-1.0"
    assert said["base_model"] == "sentence-transformers/all-MiniLM-L6-v2" and "lathe" in said["tags"]
    certificate = Chain.load(STARTERS / "compact" / "1").metadata["certificate"]
    assert f"| held out | 5000 | {certificate['recall_at_10']:.3f} |" in text
    assert "384 → 128 dimensions" in text and "lathe pull me/compact" in text and "(recall.svg)" in text
    figure = ElementTree.fromstring(files["recall.svg"])
    marks = [mark for mark in figure.iter() if mark.tag.endswith("circle")]
    assert len(marks) == len(certificate["sizes"]) + 1

    assert run("push", "small", REPO)[0] == 0
    card = hub.files(REPO)["README.md"].decode()
    assert yaml.safe_load(card.split("---\n")[1]).keys() == {"library_name", "tags", "base_model"}
    assert "recall" not in card


def test_a_tampered_or_foreign_chain_is_refused_and_nothing_appears(run, hub, pull, other, small):
    assert run("push", "small", REPO)[0] == 0
    files = hub.files(REPO)
    manifest = json.loads(files["manifest.json"])
    tensors = files["chain.safetensors"]
    cases = {
        "me/tensors": (files | {"chain.safetensors": tensors[:-1] + b"!"}, "SHA-256 does not match"),
        "me/steps": (files | {"manifest.json": json.dumps(manifest | {"normalize": False}).encode()}, "was altered"),
        "me/lists": (files | {"manifest.json": b"[" * 100_000}, "cannot be read"),
        "me/other": ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "holds no chain of Lathe"),
        "me/half": ({"manifest.json": files["manifest.json"]}, "no file 'chain.safetensors'"),
    }
    for repo, (content, reason) in cases.items():
        hub.commit(repo, content)
        assert_fails(pull(repo), reason, repo.partition("/")[2])
    assert names_in(other) == set()


def test_a_chain_whose_manifest_has_no_name_needs_one_and_fields_of_other_types_are_refused(
    run, hub, pull, other, small
):
    assert run("push", "small", REPO)[0] == 0
    files = hub.files(REPO)
    manifest = json.loads(files["manifest.json"])

    def commit(repo, **changed):
        content = {key: value for key, value in (manifest | changed).items() if value is not None}
        content["manifest_sha256"] = manifest_digest(content)
        hub.commit(repo, files | {"manifest.json": json.dumps(content).encode()})

    commit("me/nameless", name=None)
    assert_fails(pull("me/nameless"), "--as")
    assert pull("me/nameless", "--as", "named")[1] == "named@1: live\n"
    commit("me/text", encoder="e5")
    assert_fails(pull("me/text"), "encoder must be of type dict")
    assert names_in(other) == {"named"}


def test_files_of_a_repository_that_are_no_part_of_a_chain_are_not_downloaded(run, hub, pull, small):
    assert run("push", "small", REPO)[0] == 0
    hub.commit(REPO, hub.files(REPO) | {"evil.pkl": b"x", "../../outside": b"x", "setup.py": b"x"})
    assert pull(REPO)[0] == 0
    assert set(hub.downloads) == {"manifest.json", "chain.safetensors"}


def test_a_path_that_leaves_the_folder_is_refused():
    for name in ("../x", "/etc/x", "a/../../x", "a//b", "a\\b", ".", "a/./b", "a\0b"):
        with pytest.raises(BadValueError, match="not a path of a file below"):
            require_inner_path(name)


def test_a_repository_over_the_limit_and_a_download_that_is_cut_off_leave_nothing(run, hub, pull, other, small):
    """Nothing of a repository over the limit is downloaded but its manifest."""
    assert run("push", "small", REPO)[0] == 0
    good = hub.files(REPO)
    size = len(hub.files(REPO)["chain.safetensors"])
    most = max(size - 1, len(hub.files(REPO)["manifest.json"]))
    hub.commit(REPO, hub.files(REPO) | {"chain.safetensors": bytes(most + 1)})
    assert_fails(pull(REPO, "--max-bytes", most), f"more than {most}", "--max-bytes")
    assert "chain.safetensors" not in hub.downloads and names_in(other) == set()

    hub.commit(REPO, good)
    hub.damage = lambda name, content: content[:-5] if name == "chain.safetensors" else content
    status, out, err = pull(REPO)
    assert status == 1 and out == "" and REPO in err and names_in(other) == set()

    hub.endless = True  # it sends more than it said, without an end
    status, out, err = pull(REPO)
    assert status == 1 and out == "" and REPO in err and "arge" in err and names_in(other) == set()
    hub.damage, hub.endless = None, False
    assert pull(REPO)[1] == "small@1: live\n"


def test_the_token_goes_to_the_hub_and_is_never_printed(run, hub, pull, small):
    hub.token = TOKEN
    results = [run("push", "small", REPO), pull(REPO), pull("me/nothing")]
    assert [status for status, _, _ in results] == [0, 0, 1]
    assert hub.tokens == {f"Bearer {TOKEN}"} and TOKEN not in str(results)
    hub.token = "another"
    assert_fails(pull(REPO), "shows it only to those who may see it", "HF_TOKEN")
    assert_fails(run("push", "small", REPO), "HF_TOKEN")


def test_a_hub_out_of_reach_or_a_wrong_name_is_one_line(run, hub, pull, small, monkeypatch):
    for command in (("pull", "a/b/c"), ("push", "small", "a/b/c"), ("pull", "me/../x")):
        assert_fails(run(*command), "is not a repository of the hub")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{find_free_port()}")
    assert_fails(run("pull", REPO), "cannot be reached")
    assert_fails(run("push", "small", REPO), "cannot be reached")
    assert_fails(run("push", "nobody", REPO), "there is no chain")


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tiny_model):
    """Export a chain with a tiny encoder."""
    encoder = Encoder(EncoderSpec("tiny", str(tiny_model)), "cpu")
    chain = Chain(parse_steps("r2,pca:4")).fit(np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32))
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_sentence_transformers(chain, encoder, folder, "small@1")
    return folder


def test_an_exported_model_is_pushed_with_a_card_and_pulled_into_a_folder(run, hub, pull, exported, tmp_path):
    """From there it is pushed to another repository."""
    assert run("push", exported, REPO)[0] == 0
    card = hub.files(REPO)["README.md"].decode()
    said = yaml.safe_load(card.split("---\n")[1])
    assert said["library_name"] == "sentence-transformers" and f'SentenceTransformer("{REPO}")' in card
    assert not (exported / SUMS).exists()
    assert_fails(pull(REPO), "--to")
    status, out, err = pull(REPO, "--to", tmp_path / "model")
    assert status == 0 and "modules.json" in out, err
    found = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(["What is a lathe?"])
    expected = SentenceTransformer(str(exported), device="cpu").encode(["What is a lathe?"])
    np.testing.assert_array_equal(found, expected)
    assert sorted(path.name for path in tmp_path.joinpath("model").glob(".*")) == []
    assert_fails(pull(REPO, "--to", tmp_path / "model"), "already exists")

    assert run("push", tmp_path / "model", "me/second")[0] == 0
    first, second = hub.files(REPO), hub.files("me/second")
    assert {name for name in first if first[name] != second[name]} <= {"README.md", SUMS}
    assert second["README.md"].count(b"---\n") == 2 and b'SentenceTransformer("me/' in second["README.md"]


def sums_of(files):
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()).encode()


def test_a_pulled_model_with_altered_or_executable_files_is_refused(hub, pull, tmp_path):
    own = (SHIPPED / "lathe_quantization.py").read_bytes()
    plain = {"lathe.json": b"{}", "modules.json": b"[]"}
    refused = {
        "program": ({"lathe_quantization.py": own + b"\nprint(1)\n"}, "a program of others"),
        "pickle": ({"pytorch_model.bin": b"x"}, "of a kind that exports"),
        "hidden": ({".git/config": b"x"}, "of a kind that exports"),
        "outside": ({"../x.json": b"x"}, "not a path of a file below"),
    }
    for repo, (more, reason) in refused.items():
        hub.commit(f"me/{repo}", plain | more | {SUMS: sums_of(plain | more)})
        assert_fails(pull(f"me/{repo}", "--to", tmp_path / "model"), reason)
    hub.commit("me/altered", plain | {"modules.json": b"[1]", SUMS: sums_of(plain)})
    assert_fails(pull("me/altered", "--to", tmp_path / "model"), "SHA-256 does not match")
    hub.commit("me/unsummed", plain)
    assert_fails(pull("me/unsummed", "--to", tmp_path / "model"), "holds no export of Lathe")
    assert not (tmp_path / "model").exists()
    hub.commit("me/fine", plain | {"lathe_quantization.py": own, SUMS: sums_of(plain | {"lathe_quantization.py": own})})
    assert pull("me/fine", "--to", tmp_path / "model")[0] == 0
