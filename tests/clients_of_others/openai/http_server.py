"""A server with its HTTP frontend."""

import pathlib
import re

from server import Server

MODEL = pathlib.Path(__file__).parents[3] / "weights_tools/demo/gla-books"
# A chat template without what it writes for a call.
TURNS = """
{%- for t in tools or [] %}{{ t | tojson }}
{% endfor %}
{%- for m in messages %}{{ m.role }}: {{ m.content or "" }}
{%- for c in m.tool_calls or [] %}CALL{% endfor %}
{% endfor %}assistant:
"""
HERMES = TURNS.replace(
    "CALL",
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>',
)


class HttpServer(Server):
    """Serves a demo checkpoint; `url` is that of its HTTP frontend."""

    def __init__(self, *flags, model=MODEL):
        super().__init__(model, "--http", "127.0.0.1:0", "--name", "books", *flags)

    def __enter__(self):
        super().__enter__()
        # The frontend's log line follows the one that Server waits for.
        while not (line := next((l for l in self._log if "event=serving_http" in l), None)):
            pass
        self.url = f"http://127.0.0.1:{re.search(r'port=([0-9]+)', line)[1]}"
        return self
