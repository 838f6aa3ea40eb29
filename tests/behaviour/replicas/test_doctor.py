import pytest

from lathe.service.cli.doctor import UNKNOWN, describe_jobs, describe_memory, describe_persistence

pytestmark = pytest.mark.services


def lines_of(out):
    return {line[:32].strip(): line[32:] for line in out.splitlines()}


def test_doctor_reports_persistence_memory_and_workers_of_redis_or_that_it_is_unreachable(run, own_redis):
    status, out, _ = run("doctor", LATHE_REDIS_URL=own_redis.url)
    said = lines_of(out)
    assert status == 0 and said["Redis"] == "answers"
    assert "nothing is stored on disk" in said["Redis's disk"] and "loses all jobs" in said["Redis's disk"]
    assert "no maxmemory" in said["Redis's memory"]
    assert "waiting: 0; live workers" in said["jobs"] and "`lathe worker` starts one" in said["jobs"]

    own_redis.stop()
    own_redis.start("--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    said = lines_of(run("doctor")[1])
    assert "costs the last second" in said["Redis's disk"] and "may evict CHAINS" in said["Redis's memory"]

    own_redis.stop()
    status, out, _ = run("doctor")
    assert status == 1 and "Redis cannot be reached" in lines_of(out)["Redis"]


def test_doctor_reports_unknown_settings_if_redis_hides_them(run, own_redis):
    own_redis.client.acl_setuser("lathe", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
    own_redis.client.execute_command("ACL", "SETUSER", "lathe", "-info", "-config")
    status, out, _ = run("doctor", LATHE_REDIS_URL=f"redis://lathe:secret@127.0.0.1:{own_redis.port}/0")
    said = lines_of(out)
    assert status == 0 and said["Redis's disk"] == said["Redis's memory"] == UNKNOWN and "waiting: 0" in said["jobs"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (describe_persistence(False, "3600 1"), "snapshots at most"),
        (describe_persistence(True, ""), "costs the last second"),
        (describe_memory("2000000000", "volatile-lru"), "2,000 MB, volatile-lru: it evicts vectors of texts"),
        (describe_memory("1000000", "noeviction"), "refuses fits and promotions"),
        (describe_jobs(3, 2, "lathe worker"), "waiting: 3; live workers of Lathe"),
        (describe_jobs(3, 0, "lathe worker --training"), "`lathe worker --training` starts one"),
    ],
)
def test_redis_checkup_describes_settings_with_their_consequences(said, words):
    assert words in said
