"""The page at the root: what it computes, what it draws, and that it stays by itself."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
import quickjs

from ninfer.api.dashboard import page, policy
from tests.support.http import MODEL_ID, ask, served, settle

HTML = page()
FOUND = re.search("<script>(.*?)</script>", HTML, re.DOTALL)
assert FOUND is not None
SCRIPT = FOUND[1]

# As much of a browser as the page uses: elements remember their text, attributes and children; nothing is drawn.
BROWSER = """
class Element {
  constructor(name) { this.name = name; this.children = []; this.attributes = {}; this.textContent = ""; }
  append(...added) { this.children.push(...added); }
  replaceChildren(...added) { this.children = added; }
  setAttribute(name, value) { this.attributes[name] = value; }
  text() { return this.textContent + this.children.map((child) => child.text()).join("|"); }
}
const elements = {};
const document = {
  getElementById(id) { if (!IDS.includes(id)) throw new Error("no " + id); return elements[id] ||= new Element(id); },
  createElement(name) { return new Element(name); },
  createElementNS(space, name) { return new Element(name); },
};
let answers = {}, timers = 0;
function setTimeout(call, ms) { timers += ms === 1000; }
async function fetch(path, options) {
  const answer = answers[path];
  return { ok: answer !== undefined, status: 500, text: async () => answer, json: async () => JSON.parse(answer) };
}
"""


class Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "action", "style")]


def browser() -> quickjs.Context:
    parser = Ids()
    parser.feed(HTML)
    context = quickjs.Context()
    context.eval(f"const IDS = {json.dumps(parser.ids)};" + BROWSER)
    return context


def run(context: quickjs.Context, code: str = "") -> None:
    """Evaluate, then let everything that was promised happen."""
    context.eval(code)
    while context.execute_pending_job():
        pass


def value(context: quickjs.Context, expression: str) -> Any:
    return json.loads(context.eval(f"JSON.stringify({expression})"))


@pytest.fixture
def script() -> quickjs.Context:
    context = browser()
    run(context, SCRIPT)
    return context


def test_the_page_needs_nothing_from_elsewhere() -> None:
    parser = Ids()
    parser.feed(HTML)
    assert parser.references == []
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", HTML)
    assert len(parser.ids) == len(set(parser.ids))


def test_the_policy_is_that_of_this_script() -> None:
    assert policy(HTML).count("sha256-") == 2
    assert policy(HTML) != policy(HTML.replace("tick();", "tock();"))
    assert "unsafe" not in policy(HTML)


def test_quantiles_lie_between_the_bounds_of_their_bucket(script: quickjs.Context) -> None:
    buckets = "[[0.01, 0], [0.02, 50], [0.05, 99], [Infinity, 100]]"
    assert value(script, f"quantile({buckets}, 0.5)") == pytest.approx(0.02)
    assert value(script, f"quantile({buckets}, 0.25)") == pytest.approx(0.015)
    assert value(script, f"quantile({buckets}, 0.99)") == pytest.approx(0.05)
    assert value(script, f"quantile({buckets}, 1)") == pytest.approx(0.05)
    assert value(script, "quantile([[1, 0], [Infinity, 0]], 0.5)") is None
    assert value(script, "quantile([], 0.5)") is None


def test_rates_are_of_the_time_between_and_a_restart_has_none(script: quickjs.Context) -> None:
    assert value(script, "rate({a: 5}, {a: 25}, 'a', 4)") == 5
    assert value(script, "rate({a: 25}, {a: 5}, 'a', 4)") is None
    assert value(script, "rate({a: 5}, {a: 5}, 'a', 0)") is None


def test_figures_without_a_value(script: quickjs.Context) -> None:
    assert [value(script, f"shown({given})") for given in ("null", "NaN", "undefined", "3", "2.345", "123.45")] == [
        *["\N{EN DASH}"] * 3,
        "3",
        "2.35",
        "123.5",
    ]
    points = value(script, "curve([null, 0, 2])").split(" ")
    assert [point.split(",")[1] for point in points] == ["29.00", "1.00"]


@pytest.mark.asyncio
async def test_the_page_is_served_with_its_policy() -> None:
    async with served() as state:
        response = await state.app.test_client().get("/")
        assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert response.headers["content-security-policy"] == policy(HTML)
        assert await response.get_data(as_text=True) == HTML
        assert (await state.app.test_client().head("/")).status_code == 200


@pytest.mark.asyncio
async def test_what_a_running_server_answers_is_drawn() -> None:
    context = browser()
    async with served() as state:
        for n in range(2):
            answers = {
                path: await (await state.app.test_client().get(path)).get_data(as_text=True)
                for path in ("/metrics", "/slots", "/v1/models")
            }
            run(context, f"answers = {json.dumps(answers)};" + (SCRIPT if n == 0 else "tick();"))
            if n == 0:
                await state.post(ask())
                await settle(state)
    assert value(context, "elements.status.textContent") == "serving"
    assert value(context, "elements.model.textContent") == MODEL_ID
    assert value(context, "elements.lanes.text()").startswith("0|empty|0|0||")
    assert "completed|1|" in value(context, "elements.requests.text()")
    assert "undefined" not in value(context, "elements.cards.text() + elements.requests.text()")
    names = value(context, "elements.cards.children.map((card) => card.children[0].textContent)")
    assert {"decode, tokens/s", "token gap p99, ms", "waiting"} <= set(names)
    figures = value(context, "elements.cards.children.map((card) => card.children[1].textContent)")
    assert float(figures[names.index("token gap p50, ms")]) > 0
    assert value(context, "curves['running'].length") == 2
    assert value(context, "timers") == 2


@pytest.mark.asyncio
async def test_a_server_that_does_not_answer_is_said_and_asked_again() -> None:
    context = browser()
    run(context, SCRIPT)
    assert value(context, "elements.status.textContent") == "no answer: /metrics answers 500"
    assert value(context, "elements.status.className") == "bad"
    assert value(context, "timers") == 1


def test_checkpoints_stand_where_they_are(script: quickjs.Context) -> None:
    slot = {"id": 1, "is_processing": False, "retained": True, "session_digest": "d", "n_ctx": 200}
    slot |= {"n_prompt_tokens": 100, "n_prompt_tokens_cache": 100, "checkpoints": [{"frontier": 50}]}
    run(script, f"const row = laneRow({json.dumps(slot)}); const ring = row.children[5].children[0];")
    assert value(script, "row.text()") == "1|retained|100|100|d||"
    assert value(script, "ring.children.map((one) => one.attributes)") == [
        {"height": "10", "width": "50"},
        {"x1": "25", "x2": "25", "y1": "0", "y2": "10"},
    ]
