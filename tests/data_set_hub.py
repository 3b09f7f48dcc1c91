"""A hub of data sets on this machine, for tests: one data set `someone/rows`, whose files a test gives."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_NAME = "someone/rows"
_COMMIT = "a" * 40


class DataSetHub(ThreadingHTTPServer):
    """What `huggingface_hub` and `datasets` ask of a hub; `requests` holds the path of each request."""

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.requests = files, []
        # What a process must be told to ask this hub and no other, whatever this session says.
        self.environment = {
            "HF_ENDPOINT": f"http://127.0.0.1:{self.server_port}",
            "HF_HUB_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
        }
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self._answer()

    def _answer(self):
        self.server.requests.append(self.path)
        files, path = self.server.files, self.path.partition("?")[0]
        if f"/datasets/{_NAME}" not in path:
            self._send(404, b"", **{"x-error-code": "RepoNotFound"})
        elif "/resolve/" in path:
            self._send_file(path.partition("/resolve/")[2].partition("/")[2])
        elif "/tree/" in path:
            found = [
                {"type": "file", "path": name, "size": len(content), "oid": _digest(content)}
                for name, content in files.items()
            ]
            self._send(200, json.dumps(found).encode())
        else:
            about = {"_id": "1", "id": _NAME, "sha": _COMMIT, "private": True, "gated": False, "tags": []}
            self._send(200, json.dumps({**about, "siblings": [{"rfilename": name} for name in files]}).encode())

    def _send_file(self, name):
        content = self.server.files.get(name)
        if content is None:
            self._send(404, b"", **{"x-error-code": "EntryNotFound"})
        else:
            self._send(200, content, etag=f'"{_digest(content)}"')

    def _send(self, status, body, **headers):
        self.send_response(status)
        for name, value in {"x-repo-commit": _COMMIT, "content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
