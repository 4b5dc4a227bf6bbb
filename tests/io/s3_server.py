"""An S3 server on the loopback interface: objects in memory, faults on demand."""

import contextlib
import hashlib
import http.server
import random
import re
import threading
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


def unframed(body):
    """The content of a body that is sent in chunks, each after a line with its size."""
    parts = []
    while body:
        line, _, body = body.partition(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        if not size:  # and checksums
            break
        parts.append(body[:size])
        body = body[size + 2 :]
    return b"".join(parts)


class S3(http.server.BaseHTTPRequestHandler):
    """Buckets of `server.buckets`; see `served`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_one_request(self):
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def run(self):
        server = self.server
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query, keep_blank_values=True)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        time.sleep(server.faults.get("seconds", 0))
        if random.random() < server.faults.get("rate", 0):
            return self.answer(random.choice([500, 503]), b"<Error/>")
        if server.faults.get("expired"):
            return self.answer(400, b"<Error><Code>ExpiredToken</Code></Error>")
        if "Authorization" not in self.headers:
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        if bucket not in server.buckets:
            return self.answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        with server.lock:
            return getattr(self, f"on_{self.command.lower()}")(
                server.buckets[bucket], key, body
            )

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = run

    def on_put(self, objects, key, body):
        if self.server.faults.get("read-only"):
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        if self.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
            body = unframed(body)
        if "partNumber" in self.query:
            tag = f'"{hashlib.md5(body).hexdigest()}"'
            upload = self.server.uploads[self.query["uploadId"][0]]
            upload[int(self.query["partNumber"][0])] = body
            return self.answer(200, ETag=tag)
        present = objects.get(key)
        if "If-None-Match" in self.headers and present is not None:
            return self.answer(412)
        asked = self.headers.get("If-Match", "").strip('"')
        if asked and (present is None or present[1].strip('"') != asked):
            return self.answer(412)
        return self.answer(200, ETag=self.store(objects, key, body))

    def store(self, objects, key, body):
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        objects[key] = body, tag, datetime.now(UTC)
        return tag

    def on_post(self, objects, key, body):
        if "uploads" in self.query:
            name = str(len(self.server.uploads))
            self.server.uploads[name] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
            text += "</InitiateMultipartUploadResult>"
            return self.answer(200, text.encode())
        if "uploadId" in self.query:
            parts = self.server.uploads.pop(self.query["uploadId"][0])
            content = b"".join(parts[k] for k in sorted(parts))
            tag = escape(self.store(objects, key, content))
            text = f"<CompleteMultipartUploadResult><ETag>{tag}</ETag>"
            text += "</CompleteMultipartUploadResult>"
            return self.answer(200, text.encode())
        names = re.findall("<Key>(.*?)</Key>", body.decode())
        for name in names:
            objects.pop(unescape(name), None)
        deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        return self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def on_delete(self, objects, key, body):
        objects.pop(key, None)
        return self.answer(204)

    def on_head(self, objects, key, body):
        return self.on_get(objects, key, body)

    def on_get(self, objects, key, body):
        if "list-type" in self.query:
            prefix = self.query.get("prefix", [""])[0]
            entries = [
                f"<Contents><Key>{escape(name)}</Key><Size>{len(content)}</Size>"
                f"<ETag>{escape(tag)}</ETag>"
                f"<LastModified>{when:%Y-%m-%dT%H:%M:%S.000Z}</LastModified></Contents>"
                for name, (content, tag, when) in sorted(objects.items())
                if name.startswith(prefix)
                and (datetime.now(UTC) - when).total_seconds()
                >= self.server.faults.get("lag", 0)
            ]
            text = f"<ListBucketResult>{''.join(entries)}</ListBucketResult>"
            return self.answer(200, text.encode())
        if key not in objects:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        content, tag, when = objects[key]
        times = {"ETag": tag, "Last_Modified": format_datetime(when, usegmt=True)}
        if asked := self.headers.get("Range"):
            start, _, end = asked.removeprefix("bytes=").partition("-")
            start, end = int(start), int(end or len(content) - 1)
            part = content[start : end + 1]
            span = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
            return self.answer(206, part, Content_Range=span, **times)
        return self.answer(200, content, **times)


@contextlib.contextmanager
def served(*buckets):
    """Yields a server of empty buckets, and the environment that leads to it.

    `server.faults` has `rate`, of answers 500 and 503, `seconds` of each answer,
    `read-only`, `expired`, of the token, and `lag`, seconds until lists have an object.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), S3)
    server.daemon_threads = True
    server.buckets = {name: {} for name in buckets}
    server.uploads, server.faults, server.lock = {}, {}, threading.RLock()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": address}
    environment |= {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    try:
        yield server, environment
    finally:
        server.shutdown()
        server.server_close()
