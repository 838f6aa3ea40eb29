import pytest

pytestmark = pytest.mark.services


def lines_of(out):
    return {line[:32].strip(): line[32:] for line in out.splitlines()}


def test_doctor_says_whether_redis_answers_and_may_evict_chains(run, own_redis):
    status, out, _ = run("doctor", LATHE_REDIS_URL=own_redis.url)
    assert status == 0 and lines_of(out)["Redis"] == "answers"

    own_redis.stop()
    own_redis.start("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    assert "may evict chains" in lines_of(run("doctor")[1])["Redis"]

    own_redis.stop()
    status, out, _ = run("doctor")
    assert status == 1 and "Redis cannot be reached" in lines_of(out)["Redis"]


def test_doctor_needs_no_permission_to_read_the_settings_of_redis(run, own_redis):
    own_redis.client.acl_setuser("lathe", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
    own_redis.client.execute_command("ACL", "SETUSER", "lathe", "-info", "-config")
    status, out, _ = run("doctor", LATHE_REDIS_URL=f"redis://lathe:secret@127.0.0.1:{own_redis.port}/0")
    assert status == 0 and lines_of(out)["Redis"] == "answers"
