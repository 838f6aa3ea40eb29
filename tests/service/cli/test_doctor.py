"""The shortfalls that `lathe doctor` reports, and their costs."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lathe.service.cli.doctor import Machine, find_shortfalls, find_unmet, read_machine
from lathe.service.settings import Settings

SMALL = Machine(
    "cpu",
    bfloat16=False,
    cpu_flags=frozenset({"sse4_2"}),
    driver=False,
    cores=1,
    free_bytes=10**12,
    compiler=True,
    headers=True,
)
"""A machine with one core, little else and much free disk."""


def versions(**changed):
    """Return a lookup of installed versions with some changed. None stands for a missing package."""

    def installed(name):
        if name not in changed:
            return version(name)
        if changed[name] is None:
            raise PackageNotFoundError(name)
        return changed[name]

    return installed


def find_costs(home, machine=None, installed=version, **options):
    """Return the cost of each shortfall that is found, by its subject."""
    settings = Settings(home=home, **options)
    return dict(find_shortfalls(settings, machine or read_machine(settings), installed))


def test_find_unmet_names_a_package_that_is_too_old_with_the_wanted_version(tmp_path):
    assert find_unmet("lathe-service") == ()
    assert "an old version" not in find_costs(tmp_path)
    old = versions(torch="2.3.1")
    assert find_unmet("lathe-service", version=old) == ("torch>=2.9 (2.3.1 is installed)",)
    assert "torch>=2.9 (2.3.1 is installed)" in find_costs(tmp_path, installed=old)["an old version"]


def test_an_extra_is_missing_if_a_package_of_it_or_of_an_included_extra_is_missing(tmp_path):
    without = versions(mteb=None)
    found = find_costs(tmp_path, installed=without)
    assert (
        "`lathe evaluate` does not work; pip install 'lathe-training[evaluation]' installs mteb"
        in found["no lathe-training[evaluation]"]
    )
    assert "`lathe train` does not work" in found["no lathe-training[finetuning]"]
    assert "no lathe-service[redis]" not in found
    assert find_unmet("lathe-service", version=without) == ()


def test_a_missing_hnswlib_is_reported_with_the_tools_needed_to_build_it(tmp_path):
    for compiler, headers, words in [
        (False, False, "install a C++ compiler and Python's headers, then pip install 'lathe-service[index]'"),
        (False, True, "install a C++ compiler, then pip"),
        (True, True, "with all rows; pip install 'lathe-service[index]' installs hnswlib"),
    ]:
        machine = replace(SMALL, compiler=compiler, headers=headers)
        assert words in find_costs(tmp_path, machine, versions(hnswlib=None))["no lathe-service[index]"]


def test_doctor_says_that_two_builds_of_faiss_are_one_too_many_and_takes_either():
    home = Path("nowhere")
    both = find_costs(home, SMALL, versions(**{"faiss-gpu-cu12": "1.12"}))
    assert "faiss-cpu and faiss-gpu-cu12 overwrite" in both["two FAISS"]
    gpu = find_costs(home, SMALL, versions(**{"faiss-gpu-cu12": "1.12", "faiss-cpu": None}))
    assert "two FAISS" not in gpu and not any("faiss" in what for what in gpu)
    neither = find_costs(home, SMALL, versions(**{"faiss-cpu": None}))
    assert "indexes of codes take as much memory" in neither["no lathe-service[faiss]"]


def test_find_shortfalls_reports_a_missing_gpu_bfloat16_or_redis_a_single_core_and_little_disk(tmp_path):
    found = find_costs(tmp_path, SMALL)
    assert "cores: 1" in found["no GPU"] and "half the speed" in found["no bfloat16"] and "one CPU core" in found
    assert "finds no GPU" in find_costs(tmp_path, replace(SMALL, driver=True))["no GPU"]
    large = replace(SMALL, device="cuda", bfloat16=True, driver=True, cores=16)
    assert not {"no GPU", "no bfloat16", "one CPU core"} & set(find_costs(tmp_path, large))
    assert "no Redis" in found and "little disk" not in found
    found = find_costs(Path("~"), replace(SMALL, free_bytes=300_000_000), redis_url="redis://127.0.0.1:1/0")
    assert "no Redis" not in found and "0.3 GB are free" in found["little disk"]


def test_doctor_and_adding_an_encoder_warn_of_a_chat_template_until_it_is_decided_on(run, home, chatty_model, caplog):
    """Neither loads the model of an encoder that is only listed."""
    given = ["encoders", "add", "chatty", "--model", chatty_model]
    assert run(*given)[0] == 0 and "chatty wraps its texts" in caplog.text
    _, out, _ = run("doctor")
    assert "chatty wraps its texts in the chat template of an instruct model; unless" in out
    assert run("encoders", "remove", "chatty")[0] == 0
    caplog.clear()
    assert run(*given, "--chat-template", "off")[0] == 0 and "chat template" not in caplog.text
    assert "wraps its texts" not in run("doctor")[1]
    assert run("encoders", "remove", "chatty")[0] == 0
    status, _, err = run(*given, "--chat-template", "maybe")
    assert status == 2 and "'--chat-template'" in err and "'maybe'" in err


def test_an_encoder_added_by_a_relative_folder_is_found_from_any_folder(run, chatty_model, monkeypatch, tmp_path):
    monkeypatch.chdir(chatty_model.parent)
    added = ["encoders", "add", "near", "--model", chatty_model.name, "--chat-template", "off"]
    assert run(*added)[0] == 0
    monkeypatch.chdir(tmp_path)
    assert str(chatty_model) in run("encoders", "list")[1]
    assert run("encoders", "remove", "near")[0] == 0
