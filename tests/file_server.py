"""A local HTTP server of files that supports ranges, and can truncate, delay or change its answers."""

import hashlib
import io
import tarfile
import time
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler


@dataclass
class FileServer:
    """The files of a local HTTP server by path, and the requests that it has received.

    cut_after: bytes of content after which a connection ends, if any. pause: seconds after every 4 KiB. versioned: whether
    answers have an ETag. ranges: whether requests for a range are answered by a range. requests: path and Range header of every
    request. encoding: the Content-Encoding of answers.
    """

    address: str = ""
    encoding: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: int | None = None
    pause: float = 0.0
    versioned: bool = True
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"


def handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, range_header = self.path.lstrip("/"), self.headers.get("Range")
            server.requests.append((path, range_header))
            if path not in server.files:
                self.send_error(404)
                return
            content = server.files[path]
            version = f'"{hashlib.md5(content).hexdigest()}"'
            start = 0
            if range_header is not None and server.ranges and self.headers.get("If-Range") in (None, version):
                start = int(range_header.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if server.encoding is not None:
                self.send_header("Content-Encoding", server.encoding)
            if server.versioned:
                self.send_header("ETag", version)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.send_content(content[start:])

        def send_content(self, content: bytes) -> None:
            end = len(content) if server.cut_after is None else min(server.cut_after, len(content))
            for position in range(0, end, 4096):
                try:
                    self.wfile.write(content[position : min(position + 4096, end)])
                except OSError:  # the client was killed
                    return
                time.sleep(server.pause)

        def log_message(self, *arguments: object) -> None:
            """Write nothing; the base class writes a line for each request to stderr."""

    return Handler


def make_archive(kind: str, files: dict[str, bytes]) -> bytes:
    """Return a ZIP archive of files, or a TAR archive in the mode `kind` of tarfile."""
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(fileobj=stream, mode=kind) as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()
