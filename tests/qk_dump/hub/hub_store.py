"""Dataset repositories in memory, served by `hub_server`.

A repository has branches, a branch points to a commit, a commit never changes. Small files are
stored in the commit ("regular"), large files in an object store per repository ("LFS").
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import PurePosixPath
from threading import RLock

ATTRIBUTES = {".gitattributes": b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"}
"""The files of a new repository: the Hub creates this file by itself."""


class HubError(Exception):
    """An error answer, with the headers that the client builds its exceptions from."""

    def __init__(self, status, message, code="", **headers):
        super().__init__(message)
        self.status = status
        self.message = message
        self.content = {}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.headers["X-Error-Message"] = message.encode("ascii", "replace").decode()
        if code:
            self.headers["X-Error-Code"] = code


@dataclass(frozen=True)
class Account:
    """The owner of a token, and whether the token may write."""

    name: str
    write: bool = True

    def owns(self, repo):
        """Whether the repository is in the namespace of this account."""
        return repo.split("/")[0] == self.name


@dataclass(frozen=True)
class Blob:
    data: bytes
    lfs: bool = False

    @cached_property
    def sha256(self):
        """The name of an LFS object."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def pointer(self):
        """The file that git stores in place of an LFS object."""
        head = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\n"
        return f"{head}size {len(self.data)}\n".encode()

    @cached_property
    def oid(self):
        """The object id of git."""
        stored = self.pointer if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def etag(self):
        """The hash by which the client identifies the file."""
        return self.sha256 if self.lfs else self.oid


@dataclass(frozen=True)
class Commit:
    tree: Mapping[str, Blob]
    parent: str | None = None
    title: str = "initial commit"
    message: str = ""
    author: str = "system"
    id: str = field(default_factory=lambda: secrets.token_hex(20))  # never one seen before
    date: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def files(self):
        return {path: blob.data for path, blob in self.tree.items()}

    @cached_property
    def folders(self):
        """Every folder that has a file somewhere below it."""
        parents = {str(parent) for path in self.tree for parent in PurePosixPath(path).parents}
        return parents - {"."}


@dataclass
class Repo:
    name: str
    private: bool = False
    gated: bool = False

    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    objects: dict[str, Blob] = field(default_factory=dict)

    def head(self, branch):
        if branch not in self.branches:
            raise HubError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        return self.commits[self.branches[branch]]

    def at(self, revision):
        """The commit that a branch or a commit's id names."""
        return self.commits.get(revision) or self.head(revision.removeprefix("refs/heads/"))

    def file(self, revision, path):
        """A file, and the commit it was found in."""
        commit = self.at(revision)
        if path not in commit.tree:
            raise HubError(404, "Entry not found", "EntryNotFound", X_Repo_Commit=commit.id)
        return commit, commit.tree[path]

    def history(self, revision):
        """The commit and those before it, newest first."""
        commit = self.at(revision)
        while commit is not None:
            yield commit
            commit = self.commits[commit.parent] if commit.parent else None

    def create_branch(self, branch, start):
        """A branch that begins where another revision is; without one, where `main` is."""
        if branch in self.branches:
            raise HubError(409, f"Reference already exists: {branch}")
        if branch.startswith("refs/") or branch in self.commits:
            raise HubError(400, f"Invalid reference for a branch: {branch}")
        self.branches[branch] = self.at(start or "main").id

    def add(self, commit, branch):
        self.commits[commit.id] = commit
        self.branches[branch] = commit.id
        return commit

    def commit(self, branch, lines, author):
        """Apply the lines that the client sends: all of them or none."""
        header, *operations = lines
        about, head = header["value"], self.head(branch)
        if about.get("parentCommit") not in (None, head.id):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(head.tree)
        for operation in operations:
            self._apply(operation["key"], operation["value"], tree)
        title, message = about["summary"], about.get("description", "")
        return self.add(Commit(tree, head.id, title, message, author), branch)

    def _apply(self, key, value, tree):
        path = value["path"]
        if key == "file":
            tree[path] = Blob(base64.b64decode(value["content"]))
        elif key == "lfsFile":
            if value["oid"] not in self.objects:
                raise HubError(400, "An LFS pointer pointed to a file that does not exist")
            tree[path] = self.objects[value["oid"]]
        elif key == "deletedFile" and path in tree:
            del tree[path]
        elif key == "deletedFile":
            raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        else:
            raise HubError(400, f"Unknown operation: {key}")


class HubStore:
    """All repositories, and the permissions of accounts."""

    def __init__(self, accounts):
        self.accounts = dict(accounts)
        self.repos = {}
        self.lock = RLock()

    def is_lfs(self, path, size):
        """Whether a file of this name and size is stored as an LFS object."""
        return size > 1_000_000 or path.endswith(".parquet")

    def account(self, token):
        """The account of a token; None without a token."""
        if token is not None and token not in self.accounts:
            raise HubError(401, "Invalid credentials in Authorization header")
        return None if token is None else self.accounts[token]

    def readable(self, name, account):
        """A repository that this account can see."""
        repo = self.repos.get(name)
        if repo is None or (repo.private and not (account and account.owns(name))):
            status = 404 if account else 401
            message = "Repository not found" if account else "Invalid username or password."
            raise HubError(status, message, "RepoNotFound")
        return repo

    def downloadable(self, name, account):
        """A repository whose files this account may download."""
        repo = self.readable(name, account)
        if repo.gated and not (account and account.owns(name)):
            message = f"Access to dataset {name} is restricted."
            raise HubError(403 if account else 401, message, "GatedRepo")
        return repo

    def writable(self, name, account):
        """A repository that this account may change."""
        repo = self.readable(name, account)
        self.require_write(name, account)
        return repo

    def require_write(self, name, account):
        """The account, when it may write in the namespace of `name`."""
        if account is None:
            raise HubError(401, "Invalid username or password.")
        if not (account.write and account.owns(name)):
            raise HubError(403, f"You don't have the rights to write to {name}")
        return account

    def create_repo(self, name, *, private=False, gated=False):
        if name in self.repos:
            raise HubError(409, "You already created this dataset repo")
        repo = self.repos[name] = Repo(name, private=private, gated=gated)
        repo.add(Commit({path: Blob(data) for path, data in ATTRIBUTES.items()}), "main")
        return repo

    def write(self, name, files, branch="main", title="seed"):
        """A commit made without any client; None deletes. Makes repository and branch as needed."""
        with self.lock:
            repo = self.repos.get(name) or self.create_repo(name)
            if branch not in repo.branches:
                repo.create_branch(branch, None)
            head = repo.head(branch)
            tree = {path: blob for path, blob in head.tree.items() if path not in files}
            for path, data in files.items():
                if data is not None:
                    tree[path] = self.blob(repo, path, data)
            return repo.add(Commit(tree, head.id, title), branch)

    def blob(self, repo, path, data):
        """The content of a file, stored by its name and size."""
        blob = Blob(data, lfs=self.is_lfs(path, len(data)))
        if blob.lfs:
            repo.objects[blob.sha256] = blob
        return blob
