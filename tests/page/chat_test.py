"""What a visitor does on the page in a chat, and sees: with answers of the demo model where its words
do not matter, and elsewhere with those of a stand-in for the one endpoint that generates them."""

import json
import re
import subprocess

import pytest
from conftest import BIN, ROOT, Server
from playwright.sync_api import expect
from visitor import ENDLESS, dialog, get, in_text, new_session, position, send, set_sampling, transcript, words

MARKDOWN = """## Fibonacci

Each number is the **sum** of the *two* before it, see [the series](https://oeis.org/A000045) and [this](javascript:alert(1)).

```python
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
```

1. `fib(0)` is 0
2. a & b, <b>not bold</b> <script>alert(1)</script> <img src=x onerror=alert(1)>

| n | fib |
|---|----:|
| 9 | 34 |

> ![a picture](https://example.com/a.png)
"""


def event(**choice):
    return "data: " + json.dumps({"choices": [{"index": 0, "finish_reason": None, **choice}]}) + "\n\n"


def answer_with(page, text, reasoning=None):
    """Answers chats with this text, a token a word, and without the server; returns the bodies sent."""
    asked = []

    def answer(route):
        asked.append(route.request.post_data_json)
        body = event(delta={"role": "assistant", "content": ""})
        for piece in re.findall(r"\S+|\s+", reasoning or ""):
            body += event(delta={"reasoning_content": piece})
        for piece in re.findall(r"\S+|\s+", text):
            token = {"token": piece, "logprob": -0.5, "top_logprobs": []}
            body += event(delta={"content": piece}, logprobs={"content": [token]})
        body += event(delta={}, finish_reason="stop") + "data: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", answer)
    return asked


def ids(server):
    return {session["id"]: session for session in get(server, "/v1/sessions?limit=1000")["data"]}


def test_the_page_starts_with_a_chat_where_the_model_has_a_template(server, visit):
    page = visit(server.url)
    expect(page.get_by_role("radio", name="Chat")).to_be_checked()
    set_sampling(page, max_tokens=16)
    box = page.get_by_role("textbox", name="What to send")
    box.fill("Hello there")
    box.press("Shift+Enter")
    expect(box).to_have_value("Hello there\n")
    box.press("Backspace")
    box.press("Enter")
    expect(transcript(page).locator(".model small")).to_have_count(1)
    expect(transcript(page).locator(".user")).to_have_text("Hello there")
    assert position(page) > 16
    # Formatted at first; with a button as tokens, with the legend of their colours.
    expect(transcript(page).locator(".token")).to_have_count(0)
    expect(page.locator(".legend")).to_be_hidden()
    page.get_by_role("button", name="Tokens", exact=True).click()
    assert transcript(page).locator(".token").count() > 1
    expect(page.locator(".legend")).to_be_visible()
    page.get_by_role("button", name="Formatted", exact=True).click()
    expect(transcript(page).locator(".token")).to_have_count(0)


def test_a_model_without_a_template_continues_texts(visit):
    with Server(ROOT / "weights_tools/demo/xlstm-books") as plain:
        page = visit(plain.url)
        expect(page.get_by_role("radio", name="Text")).to_be_checked()
        expect(page.get_by_role("radio", name="Chat")).to_be_disabled()
        expect(page.get_by_role("heading", name="Begin a text")).to_be_visible()


def test_markdown_is_elements_and_never_html(server, visit):
    page = visit(server.url)
    answer_with(page, MARKDOWN)
    send(page, "What is Fibonacci?")
    prose = transcript(page).locator(".prose")
    expect(prose.locator("h4")).to_have_text("Fibonacci")
    expect(prose.locator("strong")).to_have_text("sum")
    expect(prose.locator("em")).to_have_text("two")
    links = prose.locator("a")
    assert links.evaluate_all("all => all.map((a) => [a.textContent, a.getAttribute('href'), a.rel])") == [
        ["the series", "https://oeis.org/A000045", "noopener noreferrer"],
        ["a picture", "https://example.com/a.png", "noopener noreferrer"]]
    expect(prose.locator("ol > li").last).to_have_text(
        "a & b, <b>not bold</b> <script>alert(1)</script> <img src=x onerror=alert(1)>")
    assert prose.locator("b, script, img").count() == 0
    expect(prose.locator("td")).to_have_text(["9", "34"])
    expect(prose.locator(".code span")).to_have_text("python")


def test_code_and_answers_are_copied(server, visit):
    page = visit(server.url, permissions=["clipboard-read", "clipboard-write"])
    answer_with(page, MARKDOWN)
    send(page, "What is Fibonacci?")
    clipboard = "navigator.clipboard.readText()"
    page.get_by_role("button", name="Copy code").click()
    expect(page.get_by_role("button", name="Copy code")).to_have_text("Copied")
    assert page.evaluate(clipboard) == "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)"
    page.get_by_role("button", name="Copy answer").click()
    expect(page.get_by_role("button", name="Copy answer")).to_have_text("Copied")
    assert page.evaluate(clipboard) == MARKDOWN
    page.get_by_role("button", name="Copy message").click()
    expect(page.get_by_role("button", name="Copy message")).to_have_text("Copied")
    assert page.evaluate(clipboard) == "What is Fibonacci?"


@pytest.mark.parametrize("text", ["> " * 20_000 + "deep", "- " * 20_000 + "deep", "[" * 50_000,
                                  "*a " * 30_000, "`" * 3_000 + "a" * 50_000, "|a" * 10_000 + "\n" + "|-" * 10_000])
def test_text_that_is_hard_to_format_is_shown_as_it_is(server, visit, text):
    page = visit(server.url)
    page.evaluate("""async (text) => {
      const {showMarkdown} = await import('/page/markdown.js');
      const box = document.createElement('div');
      const began = performance.now();
      showMarkdown(box, text);
      window.took = performance.now() - began;
      window.shown = box.textContent;
    }""", text)
    assert page.evaluate("window.took") < 5000
    assert page.evaluate("window.shown").replace("\n", "")[-4:] == text[-4:] or "|" in text


def test_reasoning_is_folded_above_its_answer(server, visit):
    page = visit(server.url)
    answer_with(page, "It is 4.", reasoning="Two and two make four.")
    send(page, "2 + 2?")
    body = transcript(page).locator(".reasoning div")
    expect(body).to_be_hidden()
    expect(transcript(page).locator(".prose")).to_have_text("It is 4.")
    page.get_by_text("Reasoning", exact=True).click()
    expect(body).to_have_text("Two and two make four.")


def test_a_footer_has_tokens_speed_and_end(server, visit):
    page = visit(server.url)
    set_sampling(page, max_tokens=12, temperature=0)
    send(page, "Tell me")
    expect(transcript(page).locator(".model small")).to_have_text(
        re.compile(r"^12 tokens, [\d.,]+ tokens/s, token limit$"))


def test_a_system_prompt_is_the_first_message(server, visit):
    page = visit(server.url)
    asked = answer_with(page, "Aye.")
    page.locator(".system-prompt summary").click()
    page.get_by_role("textbox", name="System prompt").fill("Answer as a sailor.")
    send(page, "Are you there?")
    send(page, "Still?")
    assert [body["messages"] for body in asked] == [
        [{"role": "system", "content": "Answer as a sailor."}, {"role": "user", "content": "Are you there?"}],
        [{"role": "user", "content": "Still?"}]]
    page.locator(".system summary").click()
    expect(transcript(page).locator(".system div")).to_have_text("Answer as a sailor.")
    # Another answer to the first message has the system prompt again.
    page.get_by_role("button", name="Regenerate").first.click()
    expect(transcript(page).locator(".model small")).to_have_count(1)
    assert asked[-1]["messages"] == asked[0]["messages"]


def test_regenerate_is_a_fork_that_was_rewound(server, visit):
    page = visit(server.url)
    set_sampling(page, max_tokens=10, seed=1)
    before = ids(server)
    send(page, "One day a fox")
    there = position(page)
    send(page, "And then")
    end, said = position(page), transcript(page).locator(".model .prose").all_inner_texts()
    page.get_by_role("button", name="Regenerate").last.click()
    expect(page.locator("#tree .session")).to_have_count(len(before) + 2)
    expect(transcript(page).locator(".model small")).to_have_count(2)
    expect(transcript(page).locator(".user")).to_have_text(["One day a fox", "And then"])
    # The same state, messages and seed: the same answer.
    assert transcript(page).locator(".model .prose").all_inner_texts() == said
    assert position(page) == end
    made = {name: session for name, session in ids(server).items() if name not in before}
    fork, origin = sorted(made.values(), key=lambda session: session["parent"] == "")
    assert fork["parent"] == origin["id"] and origin["position"] == fork["position"] == end
    assert there < end
    # Its place in the tree is below its parent, and the parent is as it was.
    below = page.locator("#tree li li", has=page.locator(f"[data-key='show {fork['id']}']"))
    expect(below).to_be_visible()
    page.locator(f"[data-key='show {origin['id']}']").click()
    assert transcript(page).locator(".model .prose").all_inner_texts() == said


def test_an_edited_message_is_sent_in_a_fork(server, visit):
    page = visit(server.url)
    set_sampling(page, max_tokens=10)
    send(page, "One day a fox")
    send(page, "And then")
    page.get_by_role("button", name="Edit").first.click()
    box = page.get_by_role("textbox", name="Edited message")
    expect(box).to_have_value("One day a fox")
    box.press("Escape")
    expect(transcript(page).locator(".user")).to_have_text(["One day a fox", "And then"])
    page.get_by_role("button", name="Edit").first.click()
    box.fill("One day a crow")
    page.get_by_role("button", name="Send as a fork").click()
    expect(page.locator(".pane h2")).to_have_text("One day a crow")
    expect(transcript(page).locator(".user")).to_have_text(["One day a crow"])
    expect(transcript(page).locator(".model small")).to_have_count(1)
    expect(page.locator("#tree li li .name[aria-current]")).to_have_text("One day a crow")


def test_what_cannot_be_rewound_says_why_and_leaves_no_fork(server, visit):
    page = visit(server.url, expect_errors=True)
    set_sampling(page, max_tokens=10)
    # Opened elsewhere, without rewind_tokens.
    subprocess.run([BIN / "recurve", "--server", server.grpc, "session", "open", "short"], check=True)
    page.get_by_role("button", name="Show short", exact=True).click()
    send(page, "One")
    send(page, "Two")
    there = ids(server)
    page.get_by_role("button", name="Regenerate").last.click()
    expect(page.locator(".pane").get_by_role("alert")).to_contain_text("rewind_tokens")
    expect(page.get_by_role("textbox", name="What to send")).to_have_value("Two")
    assert ids(server).keys() == there.keys()
    expect(page.locator(".pane h2")).to_have_text("short")


def test_titles_are_the_first_words(server, visit):
    page = visit(server.url)
    set_sampling(page, max_tokens=5)
    send(page, "Why do the tides rise and fall twice a day?")
    title = "Why do the tides rise and…"
    expect(page.locator(".pane h2")).to_have_text(title)
    shown = page.get_by_role("button", name=f"Show {title}", exact=True)
    expect(shown).to_have_attribute("title", re.compile("^s-"))
    page.reload()
    expect(page.locator(".pane h2")).to_have_text(title)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".pane h2")).to_have_text(f"{title} (2)")
    page.get_by_role("button", name=f"Fork {title} (2)", exact=True).click()
    dialog(page, "")
    expect(page.locator(".pane h2").last).to_have_text(f"{title} (3)")
    page.get_by_role("button", name="Hide").last.click()
    # A name that the visitor has chosen stays.
    new_session(page, "tides")
    send(page, "Why?")
    expect(page.locator(".pane h2")).to_have_text("tides")


def test_empty_states_invite(server, visit):
    with_sessions = visit(server.url)
    expect(with_sessions.get_by_role("heading", name="Start a conversation")).to_be_visible()
    opening = with_sessions.locator(".empty .row button").first
    text = opening.inner_text()
    opening.click()
    box = with_sessions.get_by_role("textbox", name="What to send")
    expect(box).to_have_value(text)
    expect(box).to_be_focused()
    in_text(with_sessions)
    expect(with_sessions.get_by_role("heading", name="Begin a text")).to_be_visible()
    set_sampling(with_sessions, max_tokens=5)
    send(with_sessions, "Once")
    expect(with_sessions.locator(".empty")).to_be_hidden()
    # Of a chat, what was sent as a text stays coloured.
    expect(with_sessions.locator(".legend")).to_be_visible()
    assert words(with_sessions).startswith("Once")


@pytest.fixture(scope="module")
def keyed(model, tmp_path_factory):
    """A server with keys: (it, {role: key})."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    new = [BIN / "recurve", "keys", "new", "--file", file, "--tenant", "alice", "--role"]
    keys = {role: subprocess.run([*new, role], check=True, capture_output=True, text=True).stdout.strip()
            for role in ("user", "observer")}
    with Server(model, "--keys", file) as running:
        yield running, keys


@pytest.mark.parametrize("role", ["user", "observer"])
def test_a_key_lives_as_long_as_the_tab(keyed, visit, role):
    server, keys = keyed
    page = visit(server.url, expect_errors=True)
    field = page.get_by_label("This server needs a key.")
    expect(field).to_be_visible()
    expect(field).to_have_attribute("type", "password")
    page.locator("#key").fill("wrong")
    page.get_by_role("button", name="Use key").click()
    expect(page.locator("#access").get_by_role("alert")).to_have_text("The server does not know this key, or it has expired.")
    page.locator("#key").fill(keys[role])
    page.locator("#key").press("Enter")
    expect(page.locator("#model")).to_have_text("xlstm-books")
    expect(field).to_be_hidden()
    # Only some roles may see the load.
    expect(page.locator("#server")).to_be_visible(visible=role == "observer")
    set_sampling(page, max_tokens=5)
    send(page, "Hello")
    page.reload()
    expect(page.locator(".pane h2")).to_have_text("Hello")
    expect(page.locator("#model")).to_have_text("xlstm-books")
    stored = page.evaluate("JSON.stringify([localStorage, location.href, document.cookie])")
    assert keys[role] not in stored
    other = page.context.new_page()
    other.goto(server.url)
    expect(other.get_by_label("This server needs a key.")).to_be_visible()
    page.get_by_role("button", name="Forget key").click()
    expect(field).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    expect(page.locator("#tree .session")).to_have_count(0)


def test_an_answer_for_another_key_is_not_shown(keyed, visit):
    server, keys = keyed
    page = visit(server.url, expect_errors=True)
    page.locator("#key").fill(keys["observer"])
    page.locator("#key").press("Enter")
    expect(page.locator("#model")).to_have_text("xlstm-books")
    set_sampling(page, max_tokens=5)
    send(page, "Hello")
    expect(page.locator("#tree .session")).not_to_have_count(0)
    answered = []
    page.route("**/v1/load", lambda route: answered.append((route, route.fetch())))
    with page.expect_request("**/v1/load"):
        pass
    while not answered:
        page.evaluate("1")
    page.get_by_role("button", name="Forget key").click()
    route, answer = answered[0]
    route.fulfill(response=answer)
    expect(page.get_by_label("This server needs a key.")).to_be_visible()
    expect(page.locator("#tree .session")).to_have_count(0)


def test_a_phone_has_a_drawer(server, visit):
    page = visit(server.url, viewport={"width": 390, "height": 844}, has_touch=True)
    drawer = page.get_by_role("button", name="Sessions and settings")
    side = page.get_by_role("complementary", name="Sessions")
    expect(drawer).to_have_attribute("aria-expanded", "false")
    expect(side).to_be_hidden()
    box = page.get_by_role("textbox", name="What to send").bounding_box()
    assert box["y"] + box["height"] > 844 - 90, "the field is at the bottom"
    set_sampling(page, max_tokens=5)
    send(page, "In the morning")
    area = transcript(page).bounding_box()
    assert area["height"] > 844 / 2
    drawer.click()
    expect(side).to_be_visible()
    expect(drawer).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(side).to_be_hidden()
    expect(drawer).to_be_focused()
    # Two branches are one next to the other, of which one fills the screen.
    drawer.click()
    page.locator("#tree .current [data-key^=fork]").click()
    page.get_by_role("button", name="OK", exact=True).click()
    expect(side).to_be_hidden()
    expect(page.locator(".pane")).to_have_count(2)
    expect(page.locator(".pane").last).to_be_in_viewport(ratio=0.95)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_an_endless_chat_is_stopped(server, visit):
    page = visit(server.url)
    set_sampling(page, **ENDLESS)
    page.get_by_role("textbox", name="What to send").fill("On and on")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(transcript(page).locator(".prose")).to_have_text(re.compile(r"(\S+\s+){20}"))
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(transcript(page).locator(".model small")).to_have_text(re.compile("stopped"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_a_chat_fits(server, visit, pictures, width, scheme):
    """In three widths; the pictures are to be looked at."""
    page = visit(server.url, viewport={"width": width, "height": 900}, color_scheme=scheme)
    sticks_out = "document.documentElement.scrollWidth - innerWidth"
    page.screenshot(path=pictures / f"chat_{width}_{scheme}_empty.png")
    assert page.evaluate(sticks_out) <= 0
    answer_with(page, MARKDOWN, "First the sum, then the table.")
    send(page, "What is Fibonacci?")
    answer_with(page, "It is the same sum again, and `fib(10)` is 55.")
    send(page, "And the next one? " + "Tell me in many words. " * 8)
    page.screenshot(path=pictures / f"chat_{width}_{scheme}.png")
    assert page.evaluate(sticks_out) <= 0
