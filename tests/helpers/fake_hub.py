"""A Hugging Face Hub on this machine: what huggingface_hub asks of it to fetch and to upload."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"


class FakeHub(ThreadingHTTPServer):
    """The repository ``owner/name`` with one commit, and what was asked of it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {}
        self.fault = ""
        self.requests: list[tuple[str, Any]] = []

    def reply(self, parts: list[str], body: bytes) -> Any:
        """Return what a request gets: bytes, JSON types, or the kind of a refusal."""
        files = self.files
        if parts[2:3] == ["resolve"]:
            return files["/".join(parts[4:])]
        if parts[:2] == ["api", "models"] and parts[2:4] != ["owner", "name"]:
            return "RepoNotFound"
        if parts[-1] == "gone":
            return "RevisionNotFound"
        if parts[4:5] == ["preupload"]:
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{**file, **modes} for file in json.loads(body)["files"]]}
        if parts[4:5] == ["tree"]:
            return [dict(type="file", path=p, size=len(c), oid="0") for p, c in files.items()]
        for change in map(json.loads, body.splitlines() if parts[4:5] == ["commit"] else []):
            if change["key"] == "deletedFile":
                del files[change["value"]["path"]]
            elif change["key"] == "file":
                files[change["value"]["path"]] = base64.b64decode(change["value"]["content"])
        known = {"id": "owner/name", "sha": COMMIT, "commitOid": COMMIT}
        siblings = [{"rfilename": p, "size": len(c)} for p, c in files.items()]
        where = f"{self.url}/owner/name"
        return {
            **known,
            "siblings": siblings,
            "url": where,
            "commitUrl": f"{where}/commit/{COMMIT}",
        }


class Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((path, body))
        found = self.server.reply(path.split("/")[1:], body)
        refusal, found = (found, {}) if isinstance(found, str) else ("", found)
        content = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(404 if refusal else 200)
        self.send_header("X-Error-Code", refusal)
        self.send_header("X-Repo-Commit", COMMIT)
        fault = self.server.fault if "/resolve/" in path else ""
        tag = "../../../x" if fault == "name" else hashlib.sha1(content).hexdigest()
        content = bytes(8 << 20) if fault == "size" else content
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if fault == "slow" and self.command == "GET":
            time.sleep(5)
        self.wfile.write(b"" if self.command == "HEAD" else content)

    do_GET = do_HEAD = do_POST = answer

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""
