"""A model hub on this machine, with the routes that huggingface_hub's client takes to push and pull."""

import base64
import hashlib
import json
import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class HubServer(ThreadingHTTPServer):
    """A hub whose repositories are lists of commits, each a dictionary of contents by path.

    A test may set `damage(path, content)`, which returns what is sent in place of a file, `endless`, with which a file
    is followed by zeros until the client hangs up or has 100 MB, and `token`, without which nothing is answered.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos, self.private, self.objects = {}, set(), {}
        self.tokens, self.downloads, self.damage, self.token = set(), [], None, None
        self.endless = False
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def commit(self, repo, files):
        """Add a commit with these files in place of all others and return its SHA."""
        self.repos.setdefault(repo, []).append(dict(files))
        return sha_of(len(self.repos[repo]))

    def files(self, repo, revision=None):
        """Return the files of a revision, or None if there is no such revision."""
        commits = self.repos[repo]
        if revision in (None, "main"):
            return (commits or [{}])[-1]
        return next((files for i, files in enumerate(commits, 1) if sha_of(i) == revision), None)

    def handle_error(self, request, client_address):
        """Ignore clients that close the connection."""


def sha_of(number):
    return f"{number:040x}"


def git_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if not self.allowed():
            return
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.*))?", path):
            self.tell_repo(*found.groups())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.*)", path):
            self.send_file(*found.groups())
        else:
            self.answer(404, {})

    do_HEAD = do_GET

    def do_PUT(self):
        self.server.objects[self.path.rpartition("/")[2]] = self.body()
        self.answer(200, {})

    def do_POST(self):
        path, body = unquote(urlsplit(self.path).path), self.body()
        if not self.allowed():
            return
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            if asked.get("visibility") == "private":
                self.server.private.add(repo)
            known = repo in self.server.repos
            self.server.repos.setdefault(repo, [])
            self.answer(409 if known else 200, {"url": f"{self.server.url}/{repo}"})
        elif path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            self.choose_uploads(found[1], json.loads(body))
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.offer_uploads(json.loads(body))
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self.commit(found[1], [json.loads(line) for line in body.splitlines()])
        else:
            self.answer(404, {})

    def allowed(self):
        """Record the token and return whether it is right.

        A wrong one is answered as the hub answers for what one may not see.
        """
        self.server.tokens.add(self.headers.get("authorization"))
        if self.server.token in (None, (self.headers.get("authorization") or "").removeprefix("Bearer ")):
            return True
        self.answer(401, {"error": "Repository not found"}, {"x-error-code": "RepoNotFound"})
        return False

    def body(self):
        if "chunked" in (self.headers.get("transfer-encoding") or ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def choose_uploads(self, repo, asked):
        known = self.server.files(repo)
        told = []
        for file in asked["files"]:
            large = file["path"].endswith(".safetensors")
            content = known.get(file["path"])
            digest = None
            if content is not None:
                digest = hashlib.sha256(content).hexdigest() if large else git_id(content)
            mode = "lfs" if large else "regular"
            told.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": digest})
        self.answer(200, {"files": told})

    def offer_uploads(self, asked):
        objects = []
        for found in asked["objects"]:
            offer = {"oid": found["oid"], "size": found["size"]}
            if found["oid"] not in self.server.objects:
                offer["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{found['oid']}", "header": {}}}
            objects.append(offer)
        self.answer(200, {"objects": objects, "transfer": "basic"})

    def commit(self, repo, lines):
        files = dict(self.server.files(repo))
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                files[line["value"]["path"]] = self.server.objects[line["value"]["oid"]]
        oid = self.server.commit(repo, files)
        self.answer(200, {"commitUrl": f"{self.server.url}/{repo}/commit/{oid}", "commitOid": oid, "success": True})

    def tell_repo(self, repo, revision):
        if repo not in self.server.repos:
            self.answer(401, {}, {"x-error-code": "RepoNotFound"})
            return
        files = self.server.files(repo, revision)
        if files is None:
            self.answer(404, {}, {"x-error-code": "RevisionNotFound"})
            return
        number = next(i for i, found in enumerate(self.server.repos[repo], 1) if found is files)
        siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
        told = {"_id": "1", "id": repo, "sha": sha_of(number), "siblings": siblings, "private": False, "tags": []}
        self.answer(200, told | {"downloads": 0, "likes": 0})

    def send_file(self, repo, revision, name):
        content = self.server.files(repo, revision)[name]
        headers = {"x-repo-commit": revision, "etag": f'"{git_id(content)}"', "content-length": len(content)}
        if self.command == "GET":
            self.server.downloads.append(name)
            if self.server.damage is not None:
                content = self.server.damage(name, content)
        if self.server.endless and self.command == "GET":
            self.send_without_end(content)
            return
        self.answer(200, content, headers)
        if len(content) < headers["content-length"]:
            self.close_connection = True  # cut off

    def send_without_end(self, content):
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            for piece in (content, *[bytes(1_000_000)] * 100):
                self.wfile.write(piece)

    def answer(self, status, body, headers=None):
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"content-length": len(payload)} | (headers or {})).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    def log_message(self, *_):
        pass
