"""A TCP proxy that delays, drops and truncates responses of an HTTP server, or answers 503 or 500.

Each request receives the next fault of a seeded schedule.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Literal

Kind = Literal["pass", "delay", "drop", "truncate", "503", "500"]
_END = b"\r\n\r\n"
_BODY = b"<Error><Code>SlowDown</Code></Error>"


class FlakyProxy:
    """A proxy on a free port of `host`, in a thread; `rate` is the share of faults."""

    def __init__(
        self, port: int, seed: int, rate: float, kinds: tuple[Kind, ...], host: str = "127.0.0.1"
    ) -> None:
        self.host = host
        self._upstream, self._rng, self._rate, self._kinds = port, random.Random(seed), rate, kinds
        self.counts: Counter[str] = Counter()
        self.healthy = False  # True: no more faults
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(60)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._connect, self.host, 0)
        server = self._loop.run_until_complete(start)
        self.port = int(server.sockets[0].getsockname()[1])
        started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0.1))  # the transports close their sockets
        self._loop.close()

    def _next(self) -> Kind:
        faulty = not self.healthy and self._rng.random() < self._rate
        kind: Kind = self._rng.choice(self._kinds) if faulty else "pass"
        self.counts[kind] += 1
        return kind

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
            try:
                while await self._exchange(reader, writer, from_server, to_server):
                    await writer.drain()
                await writer.drain()
            finally:
                to_server.close()
        except (OSError, asyncio.IncompleteReadError):
            pass  # one of the sides closed the connection
        finally:
            writer.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> bool:
        """Forward a request and its response; return whether the connection stays open."""
        head = await reader.readuntil(_END)
        kind = self._next()
        if kind == "drop":
            return False
        if kind in ("503", "500"):
            answer = f"HTTP/1.1 {kind} Fault\r\nContent-Length: {len(_BODY)}\r\n"
            body = b"" if head.startswith(b"HEAD") else _BODY
            writer.write(f"{answer}Connection: close\r\n\r\n".encode() + body)
            return False
        to_server.write(head)
        fields = _fields(head)
        if b"100-continue" in fields.get(b"expect", b""):
            writer.write(await from_server.readuntil(_END))
            await writer.drain()
        to_server.write(await _body(reader, fields))
        await to_server.drain()
        if kind == "delay":
            await asyncio.sleep(self._rng.uniform(0.05, 0.5))
        answered = await from_server.readuntil(_END)
        body = b"" if head.startswith(b"HEAD") else await _body(from_server, _fields(answered))
        truncated = kind == "truncate" and len(body) > 1
        writer.write(answered + (body[: len(body) // 2] if truncated else body))
        return not truncated


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = [line.split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line]
    return {name.strip().lower(): value.strip().lower() for name, value in lines}


async def _body(reader: asyncio.StreamReader, fields: dict[bytes, bytes]) -> bytes:
    """Read the body that belongs to the head of a request or a response."""
    if b"chunked" not in fields.get(b"transfer-encoding", b""):
        return await reader.readexactly(int(fields.get(b"content-length", b"0")))
    pieces = []
    while not pieces or int(pieces[-2], 16):
        line = await reader.readline()
        pieces += [line, await reader.readexactly(int(line, 16) + 2)]
    return b"".join(pieces)
