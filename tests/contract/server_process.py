"""The server zone of knowledge distillation in a process of its own; every file that a step opens is noted.

Reads a request per line from the standard input, an `environment` and a signed `order`, and writes a line to the
standard output: the signed `answer` and the paths that were `opened`. As a worker of that zone it imports once.
"""

import json
import os
import sys

OPENED: list[str] = []


def note(event: str, arguments: tuple) -> None:
    """An audit hook: nothing in Python opens a file past it."""
    if event == "open" and isinstance(arguments[0], str):
        OPENED.append(arguments[0])


def main() -> None:
    """Follow the orders on the standard input."""
    from understudy.flows import knowledge_distillation as flow
    from understudy.flows.server_side import Signed, answered

    for name in ("write_pairs", "improve", "tune_base"):
        setattr(flow, name, {zone: task.fn for zone, task in getattr(flow, name).items()})
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        os.environ.update(request["environment"])
        OPENED.clear()
        order = Signed.model_validate_json(request["order"])
        answer = answered(flow.SERVER.read(order).take("server"), order)
        print(json.dumps({"answer": answer.model_dump_json(), "opened": OPENED}), file=answers, flush=True)


if __name__ == "__main__":
    sys.addaudithook(note)
    main()
