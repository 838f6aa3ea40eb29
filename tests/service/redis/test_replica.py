import logging
import shutil
from functools import partial

import pytest

from tests.helpers import eventually

pytestmark = pytest.mark.services

RETRY_SECONDS = 0.1


@pytest.fixture
def open_replica(open_replica):
    """Open replicas that retry failed copies soon."""
    return partial(open_replica, retry_seconds=RETRY_SECONDS)


def has(replica, name):
    """Return whether a replica has a chain."""
    return name in replica.registry.names()


def test_a_chain_that_cannot_be_copied_is_retried_and_delays_no_other(open_replica, chains, caplog):
    """One warning is logged, not one for each try, and it does not contain the path."""
    caplog.set_level(logging.INFO)
    here, there = open_replica("here"), open_replica("there")
    obstacle = there.registry.root / "mine"
    obstacle.write_bytes(b"")  # nothing can be written below it, not by root either
    here.registry.publish(chains[0], "mine", None)
    for number in range(4):
        here.registry.publish(chains[number % 3], f"other-{number}", None)
        eventually(lambda number=number: has(there, f"other-{number}"), 5)
    (warning,) = eventually(there.warnings)
    assert "the chain mine cannot be copied from Redis: Not a directory" in warning and str(obstacle) not in warning
    assert there.connection.up and not has(there, "mine")
    tries = counted_tries(there)
    eventually(lambda: tries() >= 3)
    messages = [record.getMessage() for record in caplog.records]
    said = sum("mine cannot be copied" in message for message in messages)
    outages = sum("Redis cannot be reached" in message for message in messages)  # a slow machine's; all is copied again
    assert 1 <= said <= 1 + outages
    obstacle.unlink()
    eventually(lambda: has(there, "mine"), 5)
    eventually(lambda: there.warnings() == [], 5)
    assert there.registry.load("mine").version == 1 and "the chain mine is copied now" in caplog.text


def counted_tries(replica):
    """Return a function that counts the retries since now."""
    times = {replica.retry_at}

    def count():
        times.add(replica.retry_at)
        return len(times) - 1

    return count


def test_a_chain_that_cannot_be_copied_at_the_start_is_retried(open_replica, chains):
    open_replica("here").registry.publish(chains[0], "mine", None)
    joining = open_replica("there")
    joining.stop()
    shutil.rmtree(joining.registry.root / "mine")
    (joining.registry.root / "mine").write_bytes(b"")
    again = open_replica("there")
    assert again.connection.up and len(again.warnings()) == 1
    (again.registry.root / "mine").unlink()
    eventually(lambda: has(again, "mine") and not again.warnings(), 5)


def test_size_routes_that_cannot_be_copied_are_retried(open_replica, chains):
    here, there = open_replica("here"), open_replica("there")
    there.registry.size_routes.path.unlink()
    there.registry.size_routes.path.mkdir()
    here.registry.publish(chains[0], "mine", None)
    here.registry.size_routes.serve_dimensions("mine")
    (warning,) = eventually(there.warnings)
    assert warning.startswith("which chain answers which size cannot be copied") and there.connection.up
    there.registry.size_routes.path.rmdir()
    eventually(lambda: there.registry.size_routes.read().get("enc") == {"4": "mine"} and not there.warnings(), 5)


def test_damaged_keys_do_not_stop_the_replicator_and_are_warned_of(open_replica, chains, redis_server):
    client = redis_server.client
    here = open_replica("here")
    here.registry.publish(chains[0], "mine", None)
    here.registry.size_routes.serve_dimensions("mine")
    client.set("lathe:chain:text", "no hash")
    deep = {"pointer": here.registry.read_pointer("mine").serialize(), "version:1": b"[" * 10**5}
    client.hset("lathe:chain:deep", mapping=deep)
    client.set(b"lathe:chain:\xff", "no name")
    client.hset("lathe:size_routes", mapping={b"\xff": b"{}", "deep": b"[1]"})
    client.xadd("lathe:changes", {"chain": "text"})
    there = open_replica("there")
    assert there.connection.up and has(there, "mine") and there.registry.size_routes.read()["enc"] == {"4": "mine"}
    eventually(lambda: any("the chain text" in warning for warning in here.warnings()), 5)
    assert sorted(warning.split(" cannot")[0] for warning in there.warnings()) == ["the chain deep", "the chain text"]
    client.delete("lathe:size_routes")
    client.set("lathe:size_routes", "no hash")
    again = open_replica("again")
    assert again.connection.up and has(again, "mine")
    assert any(warning.startswith("which chain answers which size") for warning in again.warnings())


def connections(client):
    """Return the ids of all connections to Redis."""
    return {connection["id"] for connection in client.client_list()}
