"""receive_form: a form with one file, written to the store as it comes."""

import re
from functools import partial
from typing import Final

from starlette.requests import ClientDisconnect, Request

from loraplex.registry.batches.files import FileWriter

from ..adapters.upload_slots import Slot, SlotLost
from ..http.body import Body, BodyStalled, ReceivedBody, SteadyBody, open_steady_body
from ..http.errors import ApiError, invalid, overloaded
from ..http.limits import too_large
from ..http.multipart import MultipartReader, Part, boundary_of
from ..http.off_loop import finished_in_thread
from ..settings.settings import Settings

BLOCK_BYTES: Final = 1 << 20
MOST_FIELD: Final = 1024
"""Bytes of a field that is no file."""
MOST_FIELDS: Final = 16
FILE: Final = "file"
LENGTH = re.compile(r"[0-9]{1,15}", re.ASCII)


class UploadForm:
    """Its fields, and its file in a writer. `most_bytes`: of the file."""

    def __init__(self, writer: FileWriter, boundary: bytes, most_bytes: int) -> None:
        self.writer = writer
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._reader, self._most = MultipartReader(boundary), most_bytes
        self._part: Part | None = None
        self._text = bytearray()

    def take(self, block: memoryview) -> None:
        """The next bytes of the body. Blocks for the time of a disk write. Raises ApiError, StorageFull."""
        for event in self._reader.feed(block):
            if isinstance(event, Part):
                self._end_field()
                self._begin(event)
            elif self._part is not None and self._part.name == FILE:
                self.writer.write(event)
                if self.writer.size > self._most:
                    raise too_large(self._most)
            else:
                self._text += event
                if len(self._text) > MOST_FIELD:
                    raise invalid(f"The form's field has more than {MOST_FIELD} bytes.", self._name())

    def finish(self) -> None:
        """All bytes have come. Raises ApiError for a form that is not complete."""
        self._end_field()
        if not self._reader.ended:
            raise invalid("The form ends before its last boundary. Send it again.")
        if self.filename is None:
            raise invalid("The form has no file. Send its bytes as the part `file`, with a filename.", FILE)
        if self.writer.size == 0:
            raise invalid("The file is empty. Send a file with one JSON object on each line.", FILE)

    def _begin(self, part: Part) -> None:
        if part.name in self.fields or (part.name == FILE and self.filename is not None):
            raise invalid(f"The form has {part.name[:80]!a} twice.", part.name[:80])
        if len(self.fields) >= MOST_FIELDS:
            raise invalid(f"The form has more than {MOST_FIELDS} fields.")
        self._part = part
        if part.name == FILE:
            self.filename = (part.filename or FILE).replace("\\", "/").rpartition("/")[2][:255] or FILE

    def _end_field(self) -> None:
        part, self._part = self._part, None
        if part is not None and part.name != FILE:
            try:
                self.fields[part.name[:80]] = self._text.decode()
            except UnicodeDecodeError:
                raise invalid("The form's field is not UTF-8.", part.name[:80]) from None
            self._text.clear()

    def _name(self) -> str | None:
        return None if self._part is None else self._part.name[:80]


async def receive_form(
    request: Request, writer: FileWriter, slot: Slot, most_bytes: int, settings: Settings
) -> UploadForm:
    """The whole form. Raises ApiError, StorageFull."""
    form = UploadForm(writer, boundary_of(request.headers.get("content-type", "")), most_bytes)
    try:
        async with slot.within(settings.upload_timeout):
            body = await _open(request, settings.upload_stall_timeout)
            try:
                await _read(body, form)
            finally:
                body.leave()
    except (TimeoutError, BodyStalled):
        raise ApiError(408, "The file did not arrive in time. Send it again.", code="request_timeout") from None
    except SlotLost as gone:
        raise overloaded(f"{gone} Send the file again.") from None
    except ClientDisconnect:
        raise invalid("The connection closed before the file was complete.") from None
    form.finish()
    return form


async def _open(request: Request, stall_seconds: float) -> Body:
    length = request.headers.get("content-length")
    if length is None or not LENGTH.fullmatch(length):
        return SteadyBody(ReceivedBody(request.receive), stall_seconds)
    return await open_steady_body(request, int(length), stall_seconds)


async def _read(body: Body, form: UploadForm) -> None:
    block = memoryview(bytearray(BLOCK_BYTES))
    while not body.ended:
        await body.read_into(block)
        await finished_in_thread(partial(form.take, block[: body.filled]))
