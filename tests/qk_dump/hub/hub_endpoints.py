"""Answers of the test Hub to each request of the client, from the data of `hub_store`."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from hashlib import sha1
from urllib.parse import parse_qs, urlencode

from hub_store import Blob, HubError

VERBS = {
    "revision": "info",
    "branch": "branch",
    "refs": "refs",
    "tree": "tree",
    "commits": "commits",
    "preupload": "preupload",
    "commit": "commit",
    "paths-info": "paths_info",
}


@dataclass(frozen=True)
class Route:
    """The endpoint and its arguments in a path."""

    endpoint: str
    repo: str = ""
    revision: str = "main"
    path: str = ""


@dataclass(frozen=True)
class Call:
    route: Route
    method: str
    raw_path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def token(self):
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token if kind == "Bearer" else None


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def json_reply(content, status=200, headers=None):
    kind = {"Content-Type": "application/json"}
    return Reply(status, json.dumps(content).encode(), kind | (headers or {}))


def error_reply(error):
    """The answer that makes the client raise."""
    return json_reply({"error": error.message, **error.content}, error.status, error.headers)


def route(method, words):
    """The route of a path; each part was unquoted by itself, since a branch may have a slash."""
    match words:
        case ["api", "validate-yaml"]:
            return Route("yaml")
        case ["api", "repos", "create"]:
            return Route("create_repo")
        case ["api", "datasets", owner, name]:
            return Route("info", f"{owner}/{name}")
        case ["api", "datasets", owner, name, verb, *rest] if verb in VERBS:
            revision, *path = rest or ["main"]
            return Route(VERBS[verb], f"{owner}/{name}", revision, "/".join(path))
        case ["datasets", owner, name, "info", "lfs", "objects", ("batch" | "verify") as verb]:
            return Route(f"lfs_{verb}", f"{owner}/{name.removesuffix('.git')}")
        case ["lfs", owner, name, oid]:
            return Route("lfs_put", f"{owner}/{name}", path=oid)
        case ["datasets", owner, name, "resolve", revision, *path]:
            endpoint = "resolve_head" if method == "HEAD" else "resolve_get"
            return Route(endpoint, f"{owner}/{name}", revision, "/".join(path))
    return Route("unknown")


class Endpoints:
    """One method per endpoint, of the same name."""

    def __init__(self, store, url, page_size):
        self.store = store
        self.url = url
        self.page_size = page_size
        self.signature = secrets.token_hex(8)

    def answer(self, call):
        """The answer without faults."""
        method = getattr(self, call.route.endpoint)
        with self.store.lock:
            account = None if call.route.endpoint == "lfs_put" else self.store.account(call.token)
            return method(call, account)

    def unknown(self, call, account):
        raise HubError(404, f"No such endpoint: {call.method} {call.raw_path}")

    def yaml(self, call, account):
        warning = {"message": "empty or missing yaml metadata in repo card"}
        warnings = [] if call.json["content"].startswith("---\n") else [warning]
        return json_reply({"errors": [], "warnings": warnings})

    def create_repo(self, call, account):
        owner = call.json.get("organization") or (account.name if account else "")
        name, private = f"{owner}/{call.json['name']}", call.json.get("visibility") == "private"
        self.store.require_write(name, account)
        if call.json.get("type") != "dataset":
            raise HubError(400, "this test server has datasets only")
        answer = {"name": name, "url": f"{self.url}/datasets/{name}"}
        try:
            self.store.create_repo(name, private=private)
        except HubError as error:
            error.content = answer
            raise
        return json_reply(answer)

    def branch(self, call, account):
        repo = self.store.writable(call.route.repo, account)
        repo.create_branch(call.route.revision, call.json.get("startingPoint"))
        return json_reply({})

    def refs(self, call, account):
        repo = self.store.readable(call.route.repo, account)
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
            for name, commit in sorted(repo.branches.items())
        ]
        return json_reply({"branches": branches, "converts": [], "tags": [], "pullRequests": []})

    def info(self, call, account):
        repo = self.store.readable(call.route.repo, account)
        commit = repo.at(call.route.revision)
        siblings = [{"rfilename": path} for path in sorted(commit.tree)]
        facts = {"private": repo.private, "gated": "manual" if repo.gated else False}
        about = {"id": repo.name, "author": repo.name.split("/")[0], "sha": commit.id}
        dates = {"lastModified": _date(commit.date), "disabled": False, "tags": []}
        return json_reply({**about, **facts, **dates, "siblings": siblings})

    def tree(self, call, account):
        repo = self.store.readable(call.route.repo, account)
        commit, folder = repo.at(call.route.revision), call.route.path
        if folder and folder not in commit.folders:
            raise HubError(404, "Entry not found", "EntryNotFound", X_Repo_Commit=commit.id)
        prefix = f"{folder}/" if folder else ""
        below = [path for path in [*commit.tree, *commit.folders] if path.startswith(prefix)]
        if not _true(call.query.get("recursive")):
            below = [path for path in below if "/" not in path.removeprefix(prefix)]
        return self._page(call, [_entry(commit, path) for path in sorted(below)])

    def paths_info(self, call, account):
        repo = self.store.readable(call.route.repo, account)
        commit = repo.at(call.route.revision)
        form = parse_qs(call.body.decode())
        paths = [path for path in form["paths"] if path in commit.tree or path in commit.folders]
        return json_reply([_entry(commit, path) for path in paths])

    def commits(self, call, account):
        repo = self.store.readable(call.route.repo, account)
        return self._page(call, [_commit_facts(one) for one in repo.history(call.route.revision)])

    def preupload(self, call, account):
        repo = self.store.writable(call.route.repo, account)
        tree = repo.head(call.route.revision).tree
        files = call.json["files"]
        if len(files) > 256:
            raise HubError(413, "Too many files: at most 256 in a call")
        return json_reply({"files": [self._upload_mode(file, tree) for file in files]})

    def _upload_mode(self, file, tree):
        path = file["path"]
        mode = "lfs" if self.store.is_lfs(path, file["size"]) else "regular"
        known = {"oid": tree[path].etag} if path in tree else {}
        return {"path": path, "uploadMode": mode, "shouldIgnore": False, **known}

    def lfs_batch(self, call, account):
        repo = self.store.writable(call.route.repo, account)
        objects = [self._lfs_object(repo, one["oid"], one["size"]) for one in call.json["objects"]]
        return json_reply({"transfer": "basic", "objects": objects})

    def _lfs_object(self, repo, oid, size):
        if oid in repo.objects:
            return {"oid": oid, "size": size}
        put = f"{self.url}/lfs/{repo.name}/{oid}?signature={self.signature}"
        verify = f"{self.url}/datasets/{repo.name}.git/info/lfs/objects/verify"
        return {
            "oid": oid,
            "size": size,
            "actions": {"upload": {"href": put}, "verify": {"href": verify}},
        }

    def lfs_put(self, call, account):
        if call.query.get("signature") != self.signature:
            raise HubError(403, "SignatureDoesNotMatch")
        blob = Blob(call.body, lfs=True)
        if blob.sha256 != call.route.path:
            raise HubError(400, "BadDigest: the bytes do not have the sha256 of their name")
        self.store.repos[call.route.repo].objects[blob.sha256] = blob
        return Reply()

    def lfs_verify(self, call, account):
        repo = self.store.writable(call.route.repo, account)
        blob = repo.objects.get(call.json["oid"])
        if blob is None or len(blob.data) != call.json["size"]:
            raise HubError(400, "The LFS object is missing or of another size")
        return json_reply({})

    def commit(self, call, account):
        repo = self.store.writable(call.route.repo, account)
        if "create_pr" in call.query:
            raise HubError(400, "this test server has no pull requests")
        lines = [json.loads(line) for line in call.body.splitlines()]
        commit = repo.commit(call.route.revision, lines, account.name if account else "")
        url = f"{self.url}/datasets/{repo.name}/commit/{commit.id}"
        return json_reply({"success": True, "commitOid": commit.id, "commitUrl": url})

    def resolve_head(self, call, account):
        repo = self.store.downloadable(call.route.repo, account)
        commit, blob = repo.file(call.route.revision, call.route.path)
        headers = {"ETag": f'"{blob.etag}"', "X-Repo-Commit": commit.id, "Accept-Ranges": "bytes"}
        if blob.lfs:
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(blob.data))}
        return _part(blob.data, call.headers.get("range", ""), headers)

    resolve_get = resolve_head

    def _page(self, call, items):
        start = int(call.query.get("cursor", 0))
        end = start + int(call.query.get("limit", self.page_size))
        query = urlencode({**call.query, "cursor": end})
        more = {"Link": f'<{self.url}{call.raw_path}?{query}>; rel="next"'}
        return json_reply(items[start:end], headers=more if end < len(items) else None)


def _entry(commit, path):
    if path not in commit.tree:
        oid = sha1(f"{commit.id} {path}".encode()).hexdigest()
        facts = {"type": "directory", "path": path, "size": 0, "oid": oid}
        return {**facts, "lastCommit": _commit_facts(commit)}
    blob = commit.tree[path]
    entry = {
        **{"type": "file", "path": path, "size": len(blob.data), "oid": blob.oid},
        "lastCommit": _commit_facts(commit),
    }
    lfs = {"oid": blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}
    return {**entry, "lfs": lfs} if blob.lfs else entry


def _commit_facts(commit):
    facts = {"id": commit.id, "title": commit.title, "message": commit.message}
    return {**facts, "date": _date(commit.date), "authors": [{"user": commit.author}]}


def _date(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _true(value):
    return (value or "").lower() in ("true", "1")


def _part(data, wanted, headers):
    """The bytes that a Range header asks for; all of them without one."""
    if not wanted:
        return Reply(200, data, headers)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(len(data) - int(last), 0)
    end = min(int(last) + 1, len(data)) if first and last else len(data)
    if start >= end:
        raise HubError(416, "Range not satisfiable", Content_Range=f"bytes */{len(data)}")
    span = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
    return Reply(206, data[start:end], headers | span)
