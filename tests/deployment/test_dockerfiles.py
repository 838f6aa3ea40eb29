"""The Dockerfiles: read, linted, and held against what they copy and install."""

import re
import tomllib

import pytest

FILES = ["docker/Dockerfile", "docker/Dockerfile.gpu"]
GPU_ONLY = ["LABEL", "HEALTHCHECK"]


@pytest.fixture(params=FILES)
def stages(request, root, dockerfile):
    return dockerfile.read_dockerfile(root / request.param)


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def last(stages, keyword):
    return [instruction for instruction in stages[-1].instructions if instruction.keyword == keyword]


def test_the_linter_finds_nothing(tool):
    done = tool("hadolint", *FILES)

    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_exists_and_reaches_the_builder(stages, root, dockerfile):
    patterns = dockerfile.ignore_patterns(root)
    names = {stage.name for stage in stages}
    copied = [instruction for stage in stages for instruction in stage.instructions if instruction.keyword == "COPY"]

    assert len(copied) == 6
    for instruction in copied:
        if "from" in instruction.flags:
            assert instruction.flags["from"] in names
            continue
        for source in instruction.words[:-1]:
            assert (root / source).exists(), source
            assert not dockerfile.ignored(source, patterns), source


def test_the_packages_of_the_distribution_are_all_copied(stages, root):
    packages = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    copied = {words for stage in stages for one in stage.instructions if one.keyword == "COPY" for words in one.words}

    assert {package.rstrip("*") for package in packages} <= copied


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        (".env", True),
        ("k8s/secrets.env", True),
        (".git/config", True),
        ("tests/conftest.py", True),
        ("service/__pycache__/app.pyc", True),
        ("service/jobs/__pycache__/store.pyc", True),
        ("service/app.py", False),
        ("service/chains/starter_chains/compact/1/manifest.json", False),
    ],
)
def test_the_builder_is_sent_no_secret_and_nothing_stale(root, dockerfile, path, kept):
    assert dockerfile.ignored(path, dockerfile.ignore_patterns(root)) is kept


def test_it_runs_as_a_user_by_number_who_is_not_root(stages):
    (user,) = last(stages, "USER")

    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user.value)


def test_its_state_is_a_volume_and_its_command_the_one_that_is_installed(stages, project):
    environment = dict(word.split("=", 1) for env in last(stages, "ENV") for word in env.words)
    (volume,), (entry,), (command,), (stop,) = (
        last(stages, keyword) for keyword in ("VOLUME", "ENTRYPOINT", "CMD", "STOPSIGNAL")
    )

    assert volume.value == environment["LATHE_HOME"]
    assert environment["LATHE_HOST"] == "0.0.0.0"
    assert entry.words[0] in project["scripts"]
    assert command.words == ["serve"]
    assert stop.value == "SIGTERM"


def test_the_health_check_asks_for_readiness(stages):
    from service.http.routes.health import router

    (check,) = last(stages, "HEALTHCHECK")
    path = re.search(r"http://127\.0\.0\.1:8080(/[\w/]+)", check.value)[1]

    assert path == "/health/ready"
    assert path in {route.path for route in router.routes}


def test_extras_and_python_are_those_of_the_project(stages, project):
    arguments = dict(one.value.split("=", 1) for one in stages[0].instructions if one.keyword == "ARG")
    version = tuple(map(int, re.match(r"python:(\d+)\.(\d+)-slim-\w+$", stages[0].image).groups()))

    assert set(arguments["EXTRAS"].split(",")) <= set(project["optional-dependencies"])
    assert {stage.image for stage in stages} == {stages[0].image}
    assert version >= tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))


def test_faiss_for_gpus_is_of_the_version_that_was_tried(root, dockerfile):
    (build, _) = dockerfile.read_dockerfile(root / "docker/Dockerfile.gpu")
    arguments = dict(one.value.split("=", 1) for one in build.instructions if one.keyword == "ARG")

    assert f"faiss-cpu=={arguments['FAISS_GPU']}\n" in (root / "constraints.txt").read_text()
    assert not {"faiss", "milvus", "dev"} & set(arguments["EXTRAS"].split(","))


def test_both_images_run_alike(root, dockerfile):
    cpu, gpu = (dockerfile.read_dockerfile(root / file)[-1].instructions for file in FILES)

    def shape(instructions):
        kept = [one for one in instructions if one.keyword not in GPU_ONLY and "NVIDIA" not in one.value]
        return [(one.keyword, one.value) for one in kept]

    assert shape(cpu) == shape(gpu)
