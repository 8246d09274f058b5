"""A wandb server on this machine: takes what wandb's own client uploads, and gives it back to wandb's own client.

Both directions are what wandb 0.31 sends and asks for: runs by GraphQL, numbers as the lines that the client streams.
Nothing is sampled, and lists come in pages, as from the real one.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER = {"name": "lab", "username": "lab"}


@dataclass
class Stored:
    """One run as uploaded. ``history`` and ``summary`` are JSON text, as the client wrote it."""

    name: str
    display: str | None = None
    config: str = "{}"
    history: list[str] = field(default_factory=list)
    summary: str = "{}"
    state: str = "running"


class FakeWandb(ThreadingHTTPServer):
    """The server; ``runs`` by id. ``asked`` has the names of the queries."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, Stored] = {}
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def stream(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[name]
        for file, part in (body.get("files") or {}).items():
            if file == "wandb-history.jsonl":
                run.history[part["offset"] :] = part["content"]
            elif file == "wandb-summary.json":
                run.summary = part["content"][-1]
        if body.get("complete"):
            run.state = "finished" if body.get("exitcode") == 0 else "failed"
        return {}

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(query.split("(")[0].split("{")[0].split()[-1])
        if "upsertBucket" in query:
            run = self.runs.setdefault(given["name"], Stored(given["name"]))
            run.display, run.config = given.get("displayName") or run.display, given.get("config") or run.config
            project = {"id": "p", "name": "proj", "entity": {"id": "e", "name": "lab"}}
            bucket = {"id": run.name, "name": run.name, "displayName": run.display, "description": None, "config": None,
                      "sweepName": None, "historyLineCount": len(run.history), "project": project}  # fmt: skip
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}
        if "viewer {" in query:
            viewer = {"id": "v", "entity": "lab", "username": "lab", "email": "", "flags": "{}", "teams": {"edges": []}}
            return {"viewer": viewer}
        if "query Runs(" in query:
            return {"project": self.page(given) if given["project"] == "proj" else None}
        if "historyKeys" in query or "history(" in query or "parquetHistory" in query:
            return {"project": {"run": self.numbers(query, given)}}
        return {}

    def page(self, given: dict[str, Any]) -> dict[str, Any]:
        names = sorted(self.runs)
        first = names.index(given["cursor"]) + 1 if given.get("cursor") else 0
        some = names[first : first + given["perPage"]]
        edges = [{"node": self.node(self.runs[name]), "cursor": name} for name in some]
        more = first + len(some) < len(names)
        info = {"endCursor": some[-1] if some else None, "hasNextPage": more}
        return {
            "internalId": "1",
            "runCount": len(names),
            "readOnly": False,
            "runs": {"edges": edges, "pageInfo": info},
        }

    def node(self, run: Stored) -> dict[str, Any]:
        time = "2026-01-01T00:00:00Z"
        return {"projectId": "1", "id": run.name, "tags": [], "name": run.name, "displayName": run.display,
                "sweepName": None, "state": run.state, "config": run.config, "group": None, "jobType": None,
                "commit": None, "readOnly": False, "createdAt": time, "heartbeatAt": time, "description": None,
                "notes": None, "systemMetrics": "{}", "summaryMetrics": run.summary, "user": USER,
                "historyLineCount": len(run.history), "historyKeys": {"lastStep": len(run.history) - 1}}  # fmt: skip

    def numbers(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[given.get("name") or given.get("run") or given["runName"]]
        steps = [json.loads(line)["_step"] for line in run.history]
        if "parquetHistory" in query:
            return {"parquetHistory": {"parquetUrls": [], "liveData": [{"_step": step} for step in steps]}}
        if "historyKeys" in query:
            return {"historyKeys": {"lastStep": max(steps, default=-1)}}
        wanted = range(given["minStep"], given["maxStep"])
        return {"history": [line for line, step in zip(run.history, steps, strict=True) if step in wanted]}


class _Handler(BaseHTTPRequestHandler):
    server: FakeWandb

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        if self.path == "/graphql":
            asked = json.loads(body)
            self.reply({"data": self.server.answer(asked["query"], asked.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            self.reply(self.server.stream(self.path.split("/")[-2], json.loads(body)))
        else:  # files and telemetry
            self.reply({})

    do_PUT = do_POST

    def reply(self, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def serving() -> Iterator[FakeWandb]:
    """A running server."""
    server = FakeWandb()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
