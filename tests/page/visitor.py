"""What the tests of the page do as a visitor does it."""

import json
import re
import urllib.request

from playwright.sync_api import expect

expect.set_options(timeout=30_000)
TOKENS = re.compile(r"^(\d[\d,]*) tokens, state 260\.1 KiB$")
# What is drawn at random may end a text; what is most likely does not.
ENDLESS = {"max_tokens": 100000, "temperature": 0}


def get(server, path):
    with urllib.request.urlopen(server.url + path) as answer:
        return json.load(answer)


def send(page, text, pane=0):
    """Sends a text in a pane and waits for the end of its answer."""
    box = page.get_by_role("textbox", name="What to send").nth(pane)
    box.fill(text)
    answers = page.locator(".pane").nth(pane).locator(".model small")
    before = answers.count()
    page.get_by_role("button", name="Send", exact=True).nth(pane).click()
    expect(answers).to_have_count(before + 1)
    expect(page.get_by_role("button", name="Send", exact=True).nth(pane)).to_be_enabled()


def set_sampling(page, **values):
    """Fills the form, which is in the drawer on a phone."""
    drawer = page.get_by_role("button", name="Sessions and settings")
    if on_a_phone := drawer.is_visible():
        drawer.click()
    page.get_by_text("Sampling", exact=True).click()
    for name, value in values.items():
        page.locator(f"#controls [name={name}]").fill(str(value))
    page.get_by_text("Sampling", exact=True).click()
    if on_a_phone:
        page.keyboard.press("Escape")


def in_text(page):
    """The page, which sends texts now, not messages of a chat."""
    page.get_by_role("radio", name="Text").first.check()
    return page


def transcript(page, pane=0):
    return page.get_by_role("log").nth(pane)


def words(page, pane=0):
    return "".join(transcript(page, pane).locator(".user, .token").all_inner_texts())


def position(page, pane=0):
    facts = page.locator(".pane > .head .facts").nth(pane)
    expect(facts).to_have_text(TOKENS)
    return int(TOKENS.match(facts.inner_text())[1].replace(",", ""))


def dialog(page, name):
    page.locator("#ask-name").fill(name)
    page.get_by_role("button", name="OK", exact=True).click()


def new_session(page, name):
    page.get_by_role("button", name="New", exact=True).click()
    dialog(page, name)
    expect(page.get_by_role("button", name=f"Show {name}", exact=True)).to_be_visible()
