"""Redis over TLS, and for users that may do no more than they need."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import LATHE, eventually, find_free_port

pytestmark = pytest.mark.services

DOCS = Path(__file__).resolve().parents[3] / "docs/replicas.md"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder with an authority of its own, and the certificate that it gave to 127.0.0.1."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    key = ["-newkey", "rsa:2048", "-nodes"]
    for arguments in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=tests", "-days", "2"],
        ["req", *key, "-keyout", "redis.key", "-out", "redis.csr", "-subj", "/CN=redis"],
        ["x509", "-req", "-in", "redis.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
        + ["-out", "redis.crt", "-days", "2", "-extfile", "names"],
    ):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def tls_port(own_redis, certificates):
    """Let the Redis also answer over TLS and return that port."""
    port = find_free_port()
    files = {"cert": "redis.crt", "key": "redis.key", "ca-cert": "ca.crt"}
    options = [word for what, name in files.items() for word in (f"--tls-{what}-file", str(certificates / name))]
    own_redis.stop()
    own_redis.start("--tls-port", str(port), "--tls-auth-clients", "no", *options)
    return port


def test_replicas_share_chains_over_tls_if_the_authority_is_named(
    open_replica, own_redis, tls_port, certificates, chains, run
):
    """Without it the certificate is refused, and the warning does not contain the password."""
    address = f"rediss://:{own_redis.password}@127.0.0.1:{tls_port}/0"
    here, there = (open_replica(name, f"{address}?ssl_ca_certs={certificates}/ca.crt") for name in ("here", "there"))
    here.registry.publish(chains[0], "mine", None)
    eventually(lambda: "mine" in there.registry.names(), 5)
    assert here.warnings() == there.warnings() == []
    told = {"LATHE_REDIS_URL": f"{address}?ssl_ca_certs={certificates}/ca.crt"}
    assert run("chains", "show", "mine", **told)[0] == 0
    stranger = open_replica("stranger", address)
    assert "certificate verify failed" in stranger.warnings()[0] and "mine" not in stranger.registry.names()
    assert own_redis.password not in stranger.warnings()[0]


def test_the_redis_permissions_listed_in_the_docs_are_sufficient(
    own_redis, start_app, new_home, run, finish, sentences
):
    (rules,) = re.findall(r" ACL SETUSER lathe on '>ITS-PASSWORD' (.*)$", DOCS.read_text(), re.MULTILINE)
    own_redis.client.execute_command("ACL", "SETUSER", "lathe", "on", ">secret", *shlex.split(rules))
    told = {"LATHE_REDIS_URL": f"redis://lathe:secret@127.0.0.1:{own_redis.port}/0"}
    rows = np.random.default_rng(0).normal(size=(60, 8)) + 1
    body = {"name": "mine", "steps": [{"kind": "r2"}], "source": {"vectors": rows.tolist()}, "transform": True}
    endless = body | {"steps": [{"kind": "geopres", "dimensions": 4, "steps": 1_000_000}]}
    with start_app(home=new_home(), redis_url=told["LATHE_REDIS_URL"]) as app:
        worker = subprocess.Popen([*LATHE, "worker"], env=os.environ | told | {"LATHE_HOME": str(new_home())})
        try:
            jobs = [app.client.post("/fit-transform", json=asked, headers=app.admin) for asked in (body, endless)]
            fit, other = [answer.json()["job_id"] for answer in jobs]
            assert finish(fit, app)["state"] == "succeeded"
            eventually(lambda: app.client.get(f"/jobs/{other}").json()["state"] == "running", 60)
            assert app.client.delete(f"/jobs/{other}", headers=app.admin).json()["state"] == "cancelled"
            assert run("worker", "--check", **told)[0] == 0
        finally:
            worker.terminate()
            assert worker.wait(60) == 0
        assert app.client.get(f"/jobs/{fit}/vectors").status_code == 200
        assert app.client.post("/embed", json={"inputs": sentences}).status_code == 200
        eventually(lambda: own_redis.client.exists("lathe:cache:young"))
        assert run("chains", "promote", "mine@1")[0] == run("doctor")[0] == 0
        assert app.client.get("/metrics").status_code == 200 and app.client.get("/health").json()["warnings"] == []
    refused = {(entry["reason"], entry["object"]) for entry in own_redis.client.acl_log()}
    assert refused <= {("command", "config|get")}  # which only tells of settings that may lose data
