"""`lathe doctor`: what is installed, damaged or missing, and the consequences."""

import platform
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lathe.service.build_info import describe_build, describe_package, find_mixture
from lathe.service.cli.options import load_state
from lathe.service.errors import ServiceError
from lathe.training.encoder.chat_template import describe_chat_template, find_chat_template
from lathe.training.encoder.precision import resolve_dtype
from lathe.training.encoder.spec import DEFAULT_MODEL, EncoderSpec, UpstreamSpec
from lathe.training.endpoint import read_key
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import expand_home

if TYPE_CHECKING:
    from redis import Redis

    from lathe.service.home import Home
    from lathe.service.settings import Settings

UNKNOWN = "unknown: this user may not read it; docs/replicas.md lists the settings Redis needs"


def doctor() -> None:
    """Show what is installed, which device encodes, what is damaged, and what is missing with its consequence.

    The exit status is 1 if something is damaged, or the state folder, an encoder or a server cannot be used.
    """
    from lathe.service.chains.registry import Registry
    from lathe.service.cli.installation import (
        EXTRAS,
        describe_instructions,
        describe_kernels,
        find_shortfalls,
        find_unmet_of_extra,
        read_machine,
    )
    from lathe.service.index.backend import describe_folder
    from lathe.service.index.embedded.damage import find_damage
    from lathe.service.index.embedded.indexes import list_folders_without_record, list_index_folders
    from lathe.transforms.chain import Chain

    settings, home = load_state()
    machine = read_machine(settings)
    _print_line("lathe", describe_build())
    if mixture := find_mixture():
        _print_line("lathe", mixture)
    _print_line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("torch", "transformers", "sentence-transformers", "numpy"):
        _print_line(package, describe_package(package))
    _print_line(
        "device", f"{machine.device}, {resolve_dtype(settings.dtype, machine.device)}, {machine.cores} CPU cores"
    )
    _print_line("instructions", describe_instructions(machine.cpu_flags, platform.machine()))
    _print_line("kernels", describe_kernels())
    workers, threads = settings.worker_processes, settings.worker_options.threads
    threads_each = "1 thread" if threads == 1 else f"{threads} threads"
    _print_line("workers", f"{workers} for each encoder, with {threads_each} each")
    _print_line("extras", ", ".join(extra for extra in EXTRAS if not find_unmet_of_extra(extra)) or "none")

    _print_line("access", settings.describe_access())
    problem = _check_state_folder(home)
    missing_encoder = not all([_check_encoder(spec) for spec in settings.specs])

    registry = Registry(home.shared_chains if settings.redis_url else home.chains)
    damaged = 0
    for name in registry.names():
        for number in registry.versions(name):
            try:
                Chain.load(registry.root / name / str(number))
            except ArtifactError as error:
                damaged += 1
                _print_line(f"chain {name}@{number}", f"damaged: {error}")
    _print_line("chains", f"{len(registry.names())} registered, {damaged} versions damaged")

    broken = _check_servers(settings, home)
    for folder in list_index_folders(home.indexes):
        index = describe_folder(folder)
        damage = index.get("error") or find_damage(folder / "record.db")
        broken = broken or damage is not None
        _print_line(f"index {folder.name}", damage or f"{index['count']:,} items in {index['chain']}, record readable")
    for name in list_folders_without_record(home.indexes):
        broken = True
        _print_line(f"index {name}", "its record.db is missing")

    typer.echo("\nMissing, and the consequence:")
    for what, cost in find_shortfalls(settings, machine):
        _print_line(what, cost)
    if problem or missing_encoder or damaged or broken:
        raise typer.Exit(1)


def _check_state_folder(home: "Home") -> str | None:
    """Open the state folder and print its state and warnings. Return why it cannot be written, or None."""
    try:
        problem = home.open()
        _print_line("state folder", f"{home.root} can be written" if problem is None else f"{problem}: {home.root}")
        for warning in home.list_warnings():
            _print_line("state folder", warning)
    except ValueError as error:
        problem = str(error)
        _print_line("state folder", problem)
    return problem


def _check_encoder(spec: EncoderSpec) -> bool:
    """Print where an encoder's files are, with a warning on a chat template. Return whether it can be loaded.

    The files of a model that was not downloaded yet are not looked into.

    Returns:
        Whether the encoder can be loaded.
    """
    origin, available = _locate_encoder(spec)
    loaded = spec.upstream is None
    _print_line(f"encoder {spec.name}", origin if loaded and spec.model == DEFAULT_MODEL else f"{spec.model}, {origin}")
    if loaded and spec.chat_template is None and find_chat_template(partial(_read_model_file, spec)):
        _print_line(f"encoder {spec.name}", describe_chat_template(spec.name))
    return available


def _locate_encoder(spec: EncoderSpec) -> tuple[str, bool]:
    """Describe where an encoder's files or its API are, and return that and whether they can be used.

    An API is not called, since that may cost. Its key must be in the environment.

    Returns:
        The description, and whether the files are there or can be downloaded.
    """
    if spec.upstream is not None:
        return _describe_upstream(spec.upstream)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import HFValidationError

    from lathe.training.encoder.loading import locate_model

    if locate_model(spec.model) != spec.model:
        return "from its offline package", True
    if expand_home(spec.model).is_dir():
        return "a folder", True
    try:
        cached = try_to_load_from_cache(spec.model, "config.json", revision=spec.revision)
    except HFValidationError:
        return "missing: there is no such folder, and it is not a valid hub id", False
    if isinstance(cached, str):
        return "from the hub, downloaded", True
    if HF_HUB_OFFLINE:
        return "missing: not downloaded from the hub, and HF_HUB_OFFLINE is set", False
    return "from the hub, to be downloaded at the first start", True


def _read_model_file(spec: EncoderSpec, name: str) -> bytes | None:
    """Return a file of an encoder's model, from its folder or the hub's cache, or None if it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    from lathe.training.encoder.loading import locate_model

    folder = expand_home(locate_model(spec.model))
    if folder.is_dir():
        file = folder / name
        return file.read_bytes() if file.is_file() else None
    try:
        cached = try_to_load_from_cache(spec.model, name, revision=spec.revision)
    except HFValidationError:  # neither a folder nor a hub id
        return None
    return Path(cached).read_bytes() if isinstance(cached, str) else None


def _describe_upstream(upstream: UpstreamSpec) -> tuple[str, bool]:
    """Describe an embeddings API, and return that and whether its key is in the environment."""
    place = f"{upstream.protocol} at {upstream.url}"
    if upstream.api_key_env is None:
        return f"{place}, without a key", True
    try:
        read_key(upstream.api_key_env, "api_key_env")
    except ValueError as error:
        return f"{place}: {error}", False
    return f"{place}, key in {upstream.api_key_env}", True


def _check_servers(settings: "Settings", home: "Home") -> bool:
    """Print whether Milvus and Redis answer, if they are used, and return whether one of them does not."""
    from lathe.service.index.backend import find_problem, get_capabilities

    problems = []
    backend = get_capabilities(settings)
    if not backend.in_state_folder:
        problems.append(find_problem(settings, home))
        _print_line(backend.name, problems[-1] or "answers")
    if settings.redis_url:
        problems.append(_check_redis(settings))
    return any(problems)


def _check_redis(settings: "Settings") -> str | None:
    """Print the state of Redis. Return the error message if it cannot be used, else None."""
    settings.require_redis_extra()
    try:
        for subject, sentence in _describe_redis(settings.redis_url):
            _print_line(subject, sentence)
    except ServiceError as error:
        _print_line("Redis", error.message)
        return error.message
    return None


def _describe_redis(url: str) -> list[tuple[str, str]]:
    """Return lines `(subject, sentence)` on Redis: whether it answers, its disk, its memory, its jobs."""
    from lathe.service.jobs.redis.heartbeats import build_queue_name, list_live_workers
    from lathe.service.jobs.redis.queue import JobRecords
    from lathe.service.jobs.worker_class import COMMANDS
    from lathe.service.redis.connection import RedisConnection

    with closing(RedisConnection(url)) as connection, connection.reached() as client:
        client.ping()
        queues = {name: build_queue_name(name) for name in COMMANDS}
        records = JobRecords(client)
        max_memory, policy = _read_setting(client, "maxmemory"), _read_setting(client, "maxmemory-policy")
        return [
            ("Redis", "answers"),
            ("Redis's disk", describe_persistence(_is_aof_enabled(client), _read_setting(client, "save"))),
            ("Redis's memory", describe_memory(max_memory, policy)),
            *(
                (
                    name,
                    describe_jobs(records.count_waiting(queue), len(list_live_workers(client, queue)), COMMANDS[name]),
                )
                for name, queue in queues.items()
            ),
        ]


def _read_setting(client: "Redis", name: str) -> str | None:
    """Return the value of a setting of Redis as text, or None if this user may not read it."""
    from redis.exceptions import ResponseError

    from lathe.service.redis.connection import decode_text

    try:
        answer: Any = client.config_get(name)
    except ResponseError:
        return None
    return next((decode_text(value) for value in answer.values()), None)


def _is_aof_enabled(client: "Redis") -> bool | None:
    """Return whether Redis appends every change to a file (AOF), or None if this user may not read that."""
    from redis.exceptions import ResponseError

    try:
        persistence: Any = client.info("persistence")
    except ResponseError:
        return None
    return bool(persistence.get("aof_enabled"))


def describe_persistence(aof: bool | None, save: str | None) -> str:
    """Return a sentence on what is lost when Redis crashes, by whether it has an append-only file and by `save`."""
    match aof, save:
        case True, _:
            return "every change is in its append-only file: a crash costs the last second"
        case False, "":
            return (
                "nothing is stored on disk: a restart loses all jobs, and chains that no replica has a copy of; "
                "start it with --appendonly yes"
            )
        case False, _:
            return (
                "snapshots at most: a crash loses chains and jobs of the last minutes; start it with --appendonly yes"
            )
        case _:
            return UNKNOWN


def describe_memory(max_memory: str | None, policy: str | None) -> str:
    """Return a sentence on what Redis does when its memory is full, by `maxmemory` and `maxmemory-policy`."""
    if max_memory is None or policy is None:
        return UNKNOWN
    if max_memory == "0":
        return "no maxmemory: it may use all memory of the machine"
    limit = f"{int(max_memory) / 1e6:,.0f} MB, {policy}"
    if policy.startswith("allkeys"):
        return f"{limit}: it may evict CHAINS when it is full; set its maxmemory-policy to volatile-lru"
    if policy == "noeviction":
        return f"{limit}: it refuses fits and promotions when it is full; volatile-lru would make room from the cache"
    return f"{limit}: it evicts vectors of texts when it is full, and never chains"


def describe_jobs(waiting: int, workers: int, command: str) -> str:
    """Describe how many jobs wait, and how many workers there are to run them.

    Args:
        waiting: number of waiting jobs.
        workers: number of live workers that take them.
        command: command that starts such a worker.
    """
    counts = f"waiting: {waiting}; live workers of Lathe {version('lathe-service')}: {workers}"
    return counts if workers else f"{counts}, `{command}` starts one"


def _print_line(subject: str, text: str) -> None:
    typer.echo(f"{subject:32}{text}")
