"""Stored responses: in memory, bounded, the longest unused one leaves first (serving spec, 8.6).

Requests are checked on worker threads while others finish on the event loop, so the store has a lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from ninfer.api.responses_items import Item
from ninfer.errors import RequestRejected, Unsupported

# What a record takes beside its texts.
_RECORD_BYTES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One stored response.

    body          the response object, as JSON text
    input_items   the items that its request sent
    context       all items before the answer
    output        the items of the answer as a history has them; calls that were cut are left out
    preserve      whether the prompt kept old reasoning; None is the template's own rule
    """

    id: str
    body: bytes
    input_items: tuple[Item, ...]
    context: tuple[Item, ...]
    output: tuple[Item, ...]
    preserve: bool | None

    def items(self) -> Iterator[Item]:
        yield from self.input_items
        yield from self.context
        yield from self.output


class StoreTooSmall(Unsupported):
    """One record is larger than the whole store."""

    http_status = 507

    def __init__(self) -> None:
        super().__init__("The response is larger than the response store.", code="response_store_capacity_exceeded")


class ResponseNotFound(RequestRejected):
    """The response was never stored, or is not stored any more."""

    http_status = 404
    code = "response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response '{response_id}' is not stored.", param="response_id")


class ResponseStore:
    """See above.

    max_records, max_bytes   both at least 1; histories that share items count them once
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._uses: dict[int, int] = {}  # of an item, by its identity: how often records hold it
        self._outputs: dict[str, Item] = {}  # what references may name, by item id
        self._lock = threading.Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: Record) -> None:
        """Store a record, dropping others for it; raises StoreTooSmall."""
        with self._lock:
            self._hold(record)
            self._records[record.id] = record
            while self._records and (len(self._records) > self._max_records or self.bytes > self._max_bytes):
                _, oldest = self._records.popitem(last=False)
                self._let_go(oldest)
                if oldest is record:
                    raise StoreTooSmall

    def get(self, response_id: str) -> Record:
        """A record, which is then the one used last; raises ResponseNotFound."""
        with self._lock:
            record = self._records.get(response_id)
            if record is None:
                raise ResponseNotFound(response_id)
            self._records.move_to_end(response_id)
            return record

    def delete(self, response_id: str) -> None:
        """Forget a record. Those that continue it keep what they need. Raises ResponseNotFound."""
        with self._lock:
            record = self._records.pop(response_id, None)
            if record is None:
                raise ResponseNotFound(response_id)
            self._let_go(record)

    def find_item(self, item_id: str) -> Item | None:
        """An item of the answer of a stored response."""
        with self._lock:
            return self._outputs.get(item_id)

    def _hold(self, record: Record) -> None:
        self.bytes += _RECORD_BYTES + len(record.body)
        for item in record.items():
            uses = self._uses.get(id(item), 0)
            self._uses[id(item)] = uses + 1
            if not uses:
                self.bytes += item.size
        self._outputs |= {item.id: item for item in record.output}

    def _let_go(self, record: Record) -> None:
        self.bytes -= _RECORD_BYTES + len(record.body)
        for item in record.items():
            self._uses[id(item)] -= 1
            if not self._uses[id(item)]:
                del self._uses[id(item)]
                self.bytes -= item.size
        for item in record.output:
            del self._outputs[item.id]
