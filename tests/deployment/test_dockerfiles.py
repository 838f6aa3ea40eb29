"""The Dockerfiles: read, linted, and held against what they copy and install."""

import re
import tomllib

import pytest

FILES = ["docker/Dockerfile", "docker/Dockerfile.gpu"]
GPU_ONLY = ["LABEL", "HEALTHCHECK"]


@pytest.fixture(params=FILES)
def stages(request, root, dockerfile):
    """Return the parsed stages of each Dockerfile in turn."""
    return dockerfile.read_dockerfile(root / request.param)


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def last(stages, keyword):
    """Return the instructions of a keyword in the last stage."""
    return [instruction for instruction in stages[-1].instructions if instruction.keyword == keyword]


def test_hadolint_finds_no_problem(tool):
    done = tool("hadolint", *FILES)

    assert (done.returncode, done.stdout) == (0, "")


def test_every_copied_path_exists_and_is_not_ignored(stages, root, dockerfile):
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


def test_every_package_of_the_distribution_is_copied(stages, root):
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
def test_dockerignore_excludes_secrets_tests_and_caches(root, dockerfile, path, kept):
    assert dockerfile.ignored(path, dockerfile.ignore_patterns(root)) is kept


def test_images_run_as_a_numeric_user_other_than_root(stages):
    (user,) = last(stages, "USER")

    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user.value)


def test_the_state_folder_is_a_volume_and_the_command_is_lathe_serve(stages, project):
    environment = dict(word.split("=", 1) for env in last(stages, "ENV") for word in env.words)
    (volume,), (entry,), (command,), (stop,) = (
        last(stages, keyword) for keyword in ("VOLUME", "ENTRYPOINT", "CMD", "STOPSIGNAL")
    )

    assert volume.value == environment["LATHE_HOME"]
    assert environment["LATHE_HOST"] == "0.0.0.0"
    assert entry.words[0] in project["scripts"]
    assert command.words == ["serve"]
    assert stop.value == "SIGTERM"


def test_the_health_check_requests_an_existing_readiness_route(stages):
    from service.http.routes.health import router

    (check,) = last(stages, "HEALTHCHECK")
    path = re.search(r"http://127\.0\.0\.1:8080(/[\w/]+)", check.value)[1]

    assert path == "/health/ready"
    assert path in {route.path for route in router.routes}


def test_extras_and_python_version_agree_with_pyproject(stages, project):
    arguments = dict(one.value.split("=", 1) for one in stages[0].instructions if one.keyword == "ARG")
    version = tuple(map(int, re.match(r"python:(\d+)\.(\d+)-slim-\w+$", stages[0].image).groups()))

    assert set(arguments["EXTRAS"].split(",")) <= set(project["optional-dependencies"])
    assert {stage.image for stage in stages} == {stages[0].image}
    assert version >= tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))


def test_the_gpu_image_installs_the_faiss_version_of_the_constraints(root, dockerfile):
    (build, _) = dockerfile.read_dockerfile(root / "docker/Dockerfile.gpu")
    arguments = dict(one.value.split("=", 1) for one in build.instructions if one.keyword == "ARG")

    assert f"faiss-cpu=={arguments['FAISS_GPU']}\n" in (root / "constraints.txt").read_text()
    assert not {"faiss", "milvus", "dev"} & set(arguments["EXTRAS"].split(","))


def test_cpu_and_gpu_images_have_the_same_instructions_except_gpu_ones(root, dockerfile):
    cpu, gpu = (dockerfile.read_dockerfile(root / file)[-1].instructions for file in FILES)

    def shape(instructions):
        kept = [one for one in instructions if one.keyword not in GPU_ONLY and "NVIDIA" not in one.value]
        return [(one.keyword, one.value) for one in kept]

    assert shape(cpu) == shape(gpu)
