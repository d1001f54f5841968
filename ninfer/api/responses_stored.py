"""What can be done with stored responses (serving spec, 8.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quart import Response

from ninfer.api.fields import refusal
from ninfer.api.responses_items import redacted
from ninfer.api.responses_store import ResponseStore
from ninfer.api.streams import json_response
from ninfer.errors import RequestRejected

IMAGE_URLS = "message.input_image.image_url"
_PAGE_DEFAULT = 20
_PAGE_MAX = 100

# Names and values of a query string, in order.
Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Page:
    """Which items are wanted; `after` is the id before the first of them."""

    limit: int = _PAGE_DEFAULT
    ascending: bool = False
    after: str | None = None
    with_urls: bool = False


def get_response(store: ResponseStore, response_id: str, query: Query) -> Response:
    """The response object as it was; raises RequestRejected."""
    for name, value in query:
        if name not in ("include", "include[]") or value:
            raise refusal("parameter_not_supported", f"the query parameter {name} is not supported", name)
    return Response(store.get(response_id).body, content_type="application/json")


def delete_response(store: ResponseStore, response_id: str, query: Query) -> Response:
    """Forget a response; raises RequestRejected."""
    for name, _ in query:
        raise refusal("parameter_not_supported", f"the query parameter {name} is not supported", name)
    store.delete(response_id)
    return json_response({"id": response_id, "object": "response.deleted", "deleted": True})


def list_input_items(store: ResponseStore, response_id: str, query: Query) -> Response:
    """A page of what the request of a response sent; raises RequestRejected."""
    page = _page(query)
    items = list(store.get(response_id).input_items)
    if not page.ascending:
        items.reverse()
    begin = 0
    if page.after is not None:
        begin = next((n for n, item in enumerate(items, 1) if item.id == page.after), 0)
        if not begin:
            raise _bad_page("after", "the id of an input item")
    shown = items[begin : begin + page.limit]
    return json_response(
        {
            "object": "list",
            "data": [item.wire if page.with_urls else redacted(item.wire) for item in shown],
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": begin + page.limit < len(items),
        }
    )


def _page(query: Query) -> _Page:
    given = dict(query)
    if len(given) != len(query):
        raise refusal("invalid_pagination", "a query parameter is given twice")
    limit, ascending, after, with_urls = _PAGE_DEFAULT, False, None, False
    for name, value in given.items():
        match name:
            case "limit":
                limit = int(value) if value.isascii() and value.isdigit() and len(value) < 4 else 0
                if not 1 <= limit <= _PAGE_MAX:
                    raise _bad_page(name, f"an integer from 1 to {_PAGE_MAX}")
            case "order":
                if value not in ("asc", "desc"):
                    raise _bad_page(name, "asc or desc")
                ascending = value == "asc"
            case "after":
                after = value
            case "include" | "include[]":
                if value not in ("", IMAGE_URLS):
                    raise _bad_page(name, IMAGE_URLS)
                with_urls = bool(value)
            case _:
                raise refusal("invalid_pagination", f"there is no query parameter {name}", name)
    return _Page(limit, ascending, after, with_urls)


def _bad_page(name: str, what: str) -> RequestRejected:
    return refusal("invalid_pagination", f"{name} must be {what}", name)


def refuse_cancel() -> RequestRejected:
    """No response runs in the background, so none can be cancelled."""
    return refusal("background_not_supported", "responses do not run in the background")


def refuse_compact() -> RequestRejected:
    """Nothing is compacted here."""
    return refusal("compaction_not_supported", "compaction is not supported")
