"""A completions endpoint on this machine, for tests: it answers by a function, and can fail first."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def echo(request: dict) -> dict:
    """A text that is a function of prompt and seed; odd seeds are cut."""
    reason = "length" if request["seed"] % 2 else "stop"
    return {"choices": [{"text": f"{request['prompt']}/{request['seed']}", "index": 0, "finish_reason": reason}]}


class Completions:
    """A local server of the protocol; `faults` are answers (status, headers, bytes) given before the first true one.

    One that `forgets_after` so many requests refuses the next eight, as a server does whose model is unloaded.
    """

    def __init__(self, answer=echo, faults=(), *, forgets_after=None):
        self.requests, self.headers, self.paths = [], [], []
        self.faults, self.forgets_after, self._lock = list(faults), forgets_after, threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer._lock:
                    outer.requests.append(request)
                    outer.headers.append(dict(self.headers))
                    outer.paths.append(self.path)
                    fault = outer.faults.pop(0) if outer.faults else None
                    if len(outer.requests) == outer.forgets_after:
                        outer.forgets_after = None
                        outer.faults += [(404, {}, b"no such model")] * 8
                if fault == "wait":
                    outer.released.wait(20)
                    self.close_connection = True
                elif fault == "hang up":
                    self.close_connection = True
                elif fault is not None:
                    self._send(*fault)
                else:
                    self._send(200, {}, json.dumps(answer(request)).encode())

            def _send(self, status, headers, body):
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self):
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        return self

    def __exit__(self, *_):
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
