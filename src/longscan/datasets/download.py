"""A downloader for pooch that continues a partial download (RFC 9110, section 14: Range and If-Range)."""

from pathlib import Path
from typing import Any

import requests
from tqdm import tqdm
from urllib3.exceptions import HTTPError, ReadTimeoutError

TIMEOUT = 30.0  # seconds without an answer or without data
CHUNK_BYTES = 2**14  # when a connection ends, the content since the last whole chunk is lost


class ResumingDownloader:
    """Download a file over HTTP into a partial file, which a later call continues.

    The version of the server's file (its ETag, or time of change) is stored next to the partial file. The server is asked to
    continue only this version, and sends the whole file if it has changed or if it cannot continue.

    Args:
        partial: the partial file. It is moved to the output file of the call once it is complete.
    """

    def __init__(self, partial: Path) -> None:
        self.partial = partial
        self.version = partial.with_name(f"{partial.name}.version")

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:  # noqa: ARG002
        """Download `url` into `output_file`; pooch and check_only belong to the interface of pooch and are not used.

        Raises:
            ConnectionError: no connection, an answer other than a file, or a connection that ended early; the message is one
                line.
        """
        can_continue = self.partial.is_file() and self.version.is_file()
        start = self.partial.stat().st_size if can_continue else 0
        headers = {"Accept-Encoding": "identity"}  # a compressed answer has other byte positions than the file
        if start:
            headers |= {"Range": f"bytes={start}-", "If-Range": self.version.read_text("utf-8")}
        try:
            with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
                self._save(response, url, start)
        except (requests.Timeout, ReadTimeoutError):
            raise ConnectionError(f"{url} did not answer within {TIMEOUT:g} seconds; repeat the command to continue") from None
        except HTTPError:  # while the content is read; before that requests raises its RequestException
            raise ConnectionError(f"{url}: the connection ended early; repeat the command to continue") from None
        except requests.RequestException as error:
            raise ConnectionError(f"{url} cannot be reached ({type(error).__name__})") from None
        self.partial.replace(output_file)
        self.version.unlink(missing_ok=True)

    def _save(self, response: requests.Response, url: str, start: int) -> None:
        """Append the content of a response to the partial file, or replace the file if the response has all of it."""
        status, headers = response.status_code, response.headers
        if status == 416 and headers.get("Content-Range") == f"bytes */{start}":
            return  # nothing is missing
        if status == 416 or (status == 206 and not headers.get("Content-Range", "").startswith(f"bytes {start}-")):
            self.partial.unlink()
            raise ConnectionError(f"{url}: the server cannot continue at byte {start}; repeat the command to start again")
        if status not in (200, 206):
            raise ConnectionError(f"{url}: the server answered {status} {response.reason}")
        if status == 200:
            start = 0
            self._store_version(headers.get("ETag", ""), headers.get("Last-Modified", ""))
        total = start + int(headers["Content-Length"]) if "Content-Length" in headers else None
        with (
            self.partial.open("ab" if start else "wb") as file,
            tqdm(total=total, initial=start, unit="B", unit_scale=True, desc=self.partial.stem, disable=None) as bar,
        ):
            # Servers give .gz files with "Content-Encoding: x-gzip", which requests would decompress.
            for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                file.write(chunk)
                bar.update(len(chunk))
        if total is not None and self.partial.stat().st_size != total:
            raise ConnectionError(f"{url}: the connection ended early; repeat the command to continue")

    def _store_version(self, etag: str, last_modified: str) -> None:
        """Store what identifies the server's file. A weak ETag ("W/...") cannot stand in If-Range."""
        version = etag if etag and not etag.startswith("W/") else last_modified
        self.version.unlink(missing_ok=True)
        if version:
            self.version.write_text(version, "utf-8")
