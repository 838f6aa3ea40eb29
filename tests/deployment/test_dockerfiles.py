"""The Dockerfile: read, linted, and held against what it copies and installs."""

import re

import pytest
import yaml

from tests.deployment.dockerfile import is_ignored, read_dockerfile, read_ignore_patterns
from tests.distributions import extras_of, read_projects

IMAGES = ["serve", "worker"]


@pytest.fixture(scope="module")
def stages(root):
    """Return the parsed stages by name."""
    return read_dockerfile(root / "docker/Dockerfile")


@pytest.fixture(params=IMAGES)
def image(request, stages):
    """Return the stage of each image in turn."""
    return stages[request.param]


@pytest.fixture(scope="module")
def project():
    return read_projects()["lathe-service"]


def test_hadolint_finds_no_problem(tool):
    done = tool("hadolint", "docker/Dockerfile")

    assert (done.returncode, done.stdout) == (0, "")


def test_every_copied_path_exists_and_is_not_ignored(stages, root):
    patterns = read_ignore_patterns(root)
    copied = [instruction for stage in stages.values() for instruction in stage.find("COPY")]

    assert len(copied) >= 6
    for instruction in copied:
        if "from" in instruction.flags:
            assert instruction.flags["from"] in stages
            continue
        for source in instruction.words[:-1]:
            assert (root / source).exists(), source
            assert not is_ignored(source, patterns), source


def test_every_distribution_is_copied_and_built(stages):
    copied = {words for one in stages["wheels"].find("COPY") for words in one.words}
    built = stages["wheels"].find("RUN")[-1].value.split()

    assert {"transforms", "training", "service"} <= copied
    assert {"./transforms", "./training", "./service"} <= set(built)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        (".env", True),
        ("k8s/secrets.env", True),
        (".git/config", True),
        ("tests/conftest.py", True),
        ("service/__pycache__/app.pyc", True),
        ("service/lathe/service/jobs/__pycache__/store.pyc", True),
        ("service/lathe/service/app.py", False),
        ("service/lathe/service/chains/starter_chains/compact/1/manifest.json", False),
    ],
)
def test_dockerignore_excludes_secrets_tests_and_caches(root, path, kept):
    assert is_ignored(path, read_ignore_patterns(root)) is kept


def test_images_run_as_a_numeric_user_other_than_root(image):
    (user,) = image.find("USER")

    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user.value)
    assert image.instructions.index(user) > image.instructions.index(image.find("RUN")[-1])


def test_the_state_folder_is_a_volume_and_the_image_starts_lathe(image, project):
    environment = dict(word.split("=", 1) for env in image.find("ENV") for word in env.words)
    (volume,), (entry,), (command,), (stop,) = map(image.find, ("VOLUME", "ENTRYPOINT", "CMD", "STOPSIGNAL"))

    assert volume.value == "/state" and environment["LATHE_HOME"] == "/state/lathe"
    assert environment["LATHE_HOST"] == "0.0.0.0"
    assert entry.words[0] in project["scripts"]
    assert command.words == [image.name]
    assert stop.value == "SIGTERM"


def test_the_health_check_requests_an_existing_readiness_route(stages):
    from lathe.service.http.routes.health import router

    (check,) = stages["serve"].find("HEALTHCHECK")
    path = re.search(r"http://127\.0\.0\.1:8080(/[\w/]+)", check.value)[1]

    assert path == "/health/ready"
    assert path in {route.path for route in router.routes}


def test_extras_and_python_version_agree_with_pyproject(stages, project):
    arguments = dict(one.value.split("=", 1) for one in stages["wheels"].find("ARG"))
    version = tuple(map(int, re.match(r"python:(\d+)\.(\d+)-slim-\w+$", stages["wheels"].image).groups()))
    of_training = {*arguments["TRAINING_EXTRAS"].split(","), *arguments["WORKER_EXTRAS"].split(",")}

    assert set(arguments["EXTRAS"].split(",")) <= set(extras_of(project))
    assert of_training <= set(extras_of(read_projects()["lathe-training"]))
    assert not of_training & {"evaluation", "finetuning"}
    assert {stage.image for stage in stages.values()} == {stages["wheels"].image}
    assert version >= tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))


def test_the_gpu_file_installs_the_faiss_version_of_the_constraints(root):
    text = (root / "docker/compose.gpu.yml").read_text()
    arguments = yaml.safe_load(text)["x-gpu"]["build"]["args"]

    assert (
        f"faiss-cpu=={re.search(r'faiss-gpu==([0-9.]+)', arguments['PACKAGES'])[1]}\n"
        in (root / "constraints.txt").read_text()
    )
    assert not {"faiss", "milvus"} & set(arguments["EXTRAS"].split(","))
