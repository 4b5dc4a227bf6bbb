"""An HTTP file server on the loopback interface that supports byte ranges."""

import contextlib
import functools
import http.server
import re
import threading
from pathlib import Path


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Counts the bytes that it sends in `server.sent`."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        part = content[start : int(asked[2]) + 1 if asked and asked[2] else None]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(part)))
        if asked:
            last = start + len(part) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        self.end_headers()
        self.server.sent.append(len(part))
        self.wfile.write(part)


@contextlib.contextmanager
def served(folder):
    """Serves a folder; yields its address and a list of the numbers of bytes sent."""
    handler = functools.partial(Ranges, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.sent = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", server.sent
        server.shutdown()


def same_samples(one, other):
    """Asserts that the samples of two data sets are equal bit for bit."""
    assert len(one) == len(other)
    for index in range(len(one)):
        for part in ("input", "target"):
            for source, fields in getattr(one[index], part).items():
                for key, field in fields.items():
                    found = getattr(other[index], part)[source][key]
                    assert found.tobytes() == field.tobytes(), (index, key)
