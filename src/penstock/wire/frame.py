"""Cutting a byte stream into frames."""

from __future__ import annotations

from struct import Struct

from penstock.errors import ProtocolError
from penstock.limits import MAX_FRAME_BYTES

MAX_FRAME = MAX_FRAME_BYTES
_LENGTH = Struct(">i")
_MAX_LENGTH = MAX_FRAME - _LENGTH.size  # the limit counts the length field itself


Frame = bytes | bytearray
"""Without its length field."""


class FrameError(ProtocolError):
    """The stream is broken; `frames` are the good ones that came before in the same read."""

    def __init__(self, text: str, frames: list[Frame]) -> None:
        super().__init__(text)
        self.frames = frames


class FrameDecoder:
    """Turns reads of any size into frames.

    Frames that lie whole in one read are sliced out of it. A frame spread over several reads is collected in
    one growing buffer and handed on as that, so a large frame costs one copy however small the reads are.
    """

    __slots__ = ("_buffer", "_error", "_wanted")

    def __init__(self) -> None:
        self._buffer = bytearray()  # length field and beginning of an unfinished frame
        self._wanted = 0  # size of that frame with its length field; 0 while that is not known
        self._error = ""

    @property
    def pending(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return bool(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        if self._error:
            raise FrameError(self._error, [])
        if type(data) is not bytes:
            data = bytes(data)
        frames: list[Frame] = []
        position = self._finish(data, frames) if self._buffer else 0
        size = len(data)
        while size - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 0 <= length <= _MAX_LENGTH:
                self._fail(length, frames)
            end = position + 4 + length
            if end > size:
                self._wanted = end - position
                break
            frames.append(data[position + 4 : end])
            position = end
        if position < size:
            self._buffer += data[position:]
        return frames

    def _finish(self, data: bytes, frames: list[Frame]) -> int:
        """Complete the frame begun by earlier reads; returns how much of `data` it took."""
        buffer = self._buffer
        taken = 0
        if not self._wanted:
            taken = min(4 - len(buffer), len(data))
            buffer += data[:taken]
            if len(buffer) < 4:
                return taken
            (length,) = _LENGTH.unpack_from(buffer)
            if not 0 <= length <= _MAX_LENGTH:
                self._fail(length, frames)
            self._wanted = 4 + length
        end = taken + self._wanted - len(buffer)
        buffer += data[taken:end] if taken or end < len(data) else data
        if len(buffer) < self._wanted:
            return len(data)
        del buffer[:4]  # moves where it begins, not its bytes
        frames.append(buffer)
        self._buffer = bytearray()
        self._wanted = 0
        return end

    def _fail(self, length: int, frames: list[Frame]) -> None:
        what = "is negative" if length < 0 else f"is over the limit of {_MAX_LENGTH}"
        self._error = f"frame length {length} {what}"
        self._buffer = bytearray()
        raise FrameError(self._error, frames)
