"""A wandb server for the tests of the tracker: online runs without a network."""

import gzip
import json
from http.server import BaseHTTPRequestHandler
from typing import ClassVar


class Server(BaseHTTPRequestHandler):
    """As little of a wandb server as an online run needs; `resumed` has a history up to step 50."""

    history: ClassVar[list[dict]] = []
    ENTITY: ClassVar[dict] = {"id": "e", "name": "me"}
    BUCKET: ClassVar[dict] = {
        "name": "resumed",
        "historyLineCount": 2,
        "eventsLineCount": 0,
        "logLineCount": 0,
        "historyTail": json.dumps([json.dumps({"_step": 50, "train/loss": 2.0})]),
        "eventsTail": "[]",
        "summaryMetrics": "{}",
        "config": "{}",
        "wandbConfig": json.dumps({"t": 1}),  # what says that the run had begun
    }

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        answer = self.answer(json.loads(raw)) if self.path.endswith(("graphql", "stream")) else {}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST

    def answer(self, asked: dict) -> dict:
        if "query" not in asked:
            lines = asked.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
            self.history.extend(json.loads(line) for line in lines)
            return {}
        name, given = asked["query"].split("(")[0].split()[-1], asked.get("variables", {})
        project = {"id": "p", "name": given.get("project"), "entity": self.ENTITY}
        bucket = {"id": "x", "name": given.get("name"), "project": project, "config": "{}"}
        data = {
            "UpsertBucket": {"upsertBucket": {"bucket": bucket, "inserted": True}},
            "RunResumeStatus": {
                "model": {
                    **project,
                    "bucket": self.BUCKET if given.get("name") == "resumed" else None,
                }
            },
            "CreateRunFiles": {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": []}},
        }
        return {"data": data.get(name, {})}

    def log_message(self, *_: object) -> None:
        pass
