"""Redis behind TLS: certificates made by `openssl`, and a relay that terminates TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

CHUNK_BYTES = 2**16
NAMES = {
    "server": "subjectAltName=IP:127.0.0.1,DNS:localhost",
    "elsewhere": "subjectAltName=IP:192.0.2.1,DNS:elsewhere",
    "client": "keyUsage=digitalSignature",
}


EXPIRED = """
[ca]
default_ca = one
[one]
database = {folder}/index
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
{extension}
"""


class Certificates:
    """A certificate authority, and its certificates: `server` (127.0.0.1, localhost), `elsewhere`
    (another host) and `client`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._make("ca", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        for name, extension in NAMES.items():
            signer = ("-CA", self.file("ca"), "-CAkey", self.key("ca"))
            basic = "basicConstraints=critical,CA:FALSE"
            self._make(name, *map(str, signer), "-addext", extension, "-addext", basic)

    def file(self, name: str) -> Path:
        return self._folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self._folder / f"{name}.key"

    def _make(self, name: str, *options: str) -> None:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        files = ("-out", self.file(name), "-keyout", self.key(name))
        command = ("openssl", "req", "-x509", "-days", "2", "-subj", f"/CN={name}")
        subprocess.run([*command, *curve, *files, *options], check=True, capture_output=True)

    def expire(self, name: str) -> None:
        """Reissue a certificate with an end in the past by `openssl ca`, since `openssl req`
        cannot."""
        (self._folder / "index").write_text("")
        config = self._folder / "ca.conf"
        config.write_text(EXPIRED.format(folder=self._folder, extension=NAMES[name]))
        subject = ("-subj", f"/CN={name}")
        request = self._folder / "request"
        signing = ("-in", request, "-out", self.file(name), "-cert", self.file("ca"))
        dates = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
        for command in (
            ("req", "-new", "-key", self.key(name), *subject, "-out", request),
            ("ca", "-batch", "-config", config, *signing, "-keyfile", self.key("ca"), *dates),
        ):
            subprocess.run(["openssl", *command], check=True, capture_output=True)

    def context(self, name: str = "server") -> ssl.SSLContext:
        """TLS context of a server, which accepts every client."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file(name), self.key(name))
        context.load_verify_locations(self.file("ca"))
        return context


@asynccontextmanager
async def behind_tls(redis_url: str, context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Run a relay that terminates TLS for Redis; yield its port on 127.0.0.1. Args: context: None:
    plain TCP."""
    path = unquote(urlsplit(redis_url).path)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
