"""What a visitor does on the page with texts and their tokens, and sees."""

import json
import re
import urllib.request

import pytest
from conftest import Server
from playwright.sync_api import expect
from visitor import ENDLESS, dialog, get, in_text, new_session, position, send, set_sampling, transcript, words


def test_a_text_streams_in_colours_with_its_alternatives(server, visit, pictures):
    page = in_text(visit(server.url))
    expect(page.locator("#model")).to_have_text("xlstm-books")
    set_sampling(page, max_tokens=40, seed=1)
    send(page, "Once upon a time")
    expect(transcript(page).locator(".user")).to_have_text("Once upon a time")
    tokens = transcript(page).locator(".token")
    expect(tokens).to_have_count(40)
    shades = set(tokens.evaluate_all("spans => spans.map((s) => s.className)"))
    assert len(shades) >= 3, shades
    tokens.nth(5).click()
    rows = page.locator(".alternatives li")
    assert rows.count() >= 5
    expect(page.locator(".alternatives li[aria-current]")).to_have_count(1)
    first = page.locator(".alternatives li[aria-current] code").inner_text()
    transcript(page).press("ArrowRight")
    expect(page.locator(".token.chosen")).to_have_text(tokens.nth(6).inner_text(),
                                                       use_inner_text=True)
    transcript(page).press("Escape")
    expect(page.locator(".alternatives")).to_be_hidden()
    assert first.replace("␣", " ").strip() == tokens.nth(5).inner_text().strip()
    page.screenshot(path=pictures / "page.png")


def test_the_same_seed_gives_what_the_server_gives(server, visit):
    page = in_text(visit(server.url))
    set_sampling(page, max_tokens=20, seed=7, temperature=1, min_p=0)
    send(page, "The old man")
    body = json.dumps({"prompt": "The old man", "max_tokens": 20, "seed": 7, "temperature": 1})
    asked = urllib.request.Request(server.url + "/v1/completions", body.encode(),
                                   {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        text = json.load(answer)["choices"][0]["text"]
    shown = "".join(transcript(page).locator(".token").evaluate_all(
        "spans => spans.map((s) => s.textContent)"))
    assert shown == text


def test_branches_stand_side_by_side(server, visit, pictures):
    page = in_text(visit(server.url))
    set_sampling(page, max_tokens=24)
    new_session(page, "story")
    send(page, "It was a dark night")
    begun = words(page)
    page.get_by_role("button", name="Fork story", exact=True).click()
    dialog(page, "story.2")
    expect(page.locator(".pane")).to_have_count(2)
    assert words(page, 1) == begun
    assert position(page, 1) == position(page, 0)
    assert get(server, "/v1/sessions/story.2")["parent"] == "story"
    # In the tree it stands below what it was forked from.
    below = page.locator("#tree > ul > li", has_text="story").locator("ul")
    expect(below.get_by_role("button", name="Show story.2", exact=True)).to_be_visible()
    send(page, " and she said", 0)
    send(page, " and he ran", 1)
    assert words(page, 0) != words(page, 1)
    assert words(page, 0).startswith(begun) and words(page, 1).startswith(begun)
    page.locator(".both input").first.check()
    send(page, " Then")
    expect(transcript(page, 1).locator(".user").last).to_have_text("Then")
    expect(transcript(page, 1).locator(".model small")).to_have_count(3)
    transcript(page).locator(".token").nth(4).click()
    page.screenshot(path=pictures / "page_branches.png")
    page.get_by_role("button", name="Hide").last.click()
    expect(page.locator(".pane")).to_have_count(1)


def test_a_mark_is_come_back_to(server, visit):
    page = in_text(visit(server.url))
    set_sampling(page, max_tokens=10)
    new_session(page, "marked")
    send(page, "Call me Ishmael.")
    there, text = position(page), words(page)
    page.get_by_role("button", name="Mark where marked is").click()
    dialog(page, "here")
    expect(page.get_by_text("⚑ here")).to_be_visible()
    send(page, "")
    assert position(page) > there and words(page).startswith(text)
    page.get_by_role("button", name="Rewind marked to here").click()
    expect(transcript(page).locator(".model")).to_have_count(1)
    assert words(page) == text
    assert position(page) == there
    assert get(server, "/v1/sessions/marked")["position"] == there
    forget = page.get_by_role("button", name="Forget the mark here of marked")
    forget.click()
    expect(forget).to_have_text("Sure?")
    forget.click()
    expect(page.get_by_text("⚑ here")).to_have_count(0)
    close = page.get_by_role("button", name="Close marked")
    close.click()
    close.click()
    expect(page.get_by_role("button", name="Show marked", exact=True)).to_have_count(0)


def test_a_reload_loses_nothing(server, visit):
    page = in_text(visit(server.url))
    set_sampling(page, max_tokens=12)
    new_session(page, "kept")
    send(page, "It is a truth")
    text, there = words(page), position(page)
    page.reload()
    expect(transcript(page).locator(".token")).to_have_count(12)
    assert words(page) == text and position(page) == there
    expect(page.locator("#controls [name=max_tokens]")).to_have_value("12")
    send(page, "")
    assert words(page).startswith(text) and len(words(page)) > len(text)


def test_a_reload_in_the_middle_of_an_answer(server, visit):
    page = in_text(visit(server.url))
    set_sampling(page, **ENDLESS)
    new_session(page, "long")
    page.get_by_role("textbox", name="What to send").fill("On and on")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(transcript(page).locator(".token").nth(100)).to_be_attached()
    page.reload()
    expect(transcript(page).locator(".model small")).to_have_text(re.compile("interrupted"))
    expect(page.locator(".pane > .note")).to_be_hidden()
    assert not get(server, "/v1/sessions/long")["busy"]


def test_an_answer_can_be_stopped(server, visit):
    page = in_text(visit(server.url))
    set_sampling(page, **ENDLESS)
    new_session(page, "stopped")
    page.get_by_role("textbox", name="What to send").fill("On and on")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(transcript(page).locator(".token").nth(20)).to_be_attached()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(transcript(page).locator(".model small")).to_have_text(re.compile("stopped"))
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
    set_sampling(page, max_tokens=5)
    send(page, " Then")
    expect(transcript(page).locator(".model small").last).to_have_text(re.compile("^5 tokens"))


def test_a_refusal_is_said_and_nothing_is_lost(server, visit):
    page = in_text(visit(server.url, expect_errors=True))
    set_sampling(page, max_tokens=0)
    page.get_by_role("textbox", name="What to send").fill("Hello")
    page.locator("#controls [name=max_tokens]").evaluate("input => { input.value = '-5'; }")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("max_tokens")
    expect(page.get_by_role("textbox", name="What to send")).to_have_value("Hello")
    expect(transcript(page).locator(".user")).to_have_count(0)


def test_without_the_network(server, visit):
    page = in_text(visit(server.url, expect_errors=True))
    set_sampling(page, max_tokens=8)
    new_session(page, "offline")
    send(page, "The sea")
    text = words(page)
    page.context.set_offline(True)
    expect(page.get_by_role("status")).to_have_text(re.compile("cannot be reached"))
    page.get_by_role("textbox", name="What to send").fill(" was")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("the server cannot be reached")
    expect(page.get_by_role("textbox", name="What to send")).to_have_value(" was")
    assert words(page) == text
    page.context.set_offline(False)
    expect(page.get_by_role("status")).to_have_text("")
    send(page, " was")
    assert words(page).startswith(text + " was")


def test_a_server_that_dies_in_the_middle_of_an_answer(model, visit):
    with Server(model) as mine:
        page = in_text(visit(mine.url, expect_errors=True))
        set_sampling(page, **ENDLESS)
        page.get_by_role("textbox", name="What to send").fill("On and on")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(transcript(page).locator(".token").nth(50)).to_be_attached()
        mine.process.kill()
        expect(page.get_by_role("alert")).to_be_visible()
        expect(transcript(page).locator(".model small")).to_have_text(re.compile("interrupted"))
        expect(page.get_by_role("status")).to_have_text(re.compile("cannot be reached"))


def test_the_keyboard_alone(server, visit):
    page = in_text(visit(server.url))
    set_sampling(page, max_tokens=6)
    page.keyboard.press("Escape")
    for _ in range(60):  # from wherever it is to the text
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "TEXTAREA":
            break
    page.keyboard.type("By hand")
    page.keyboard.press("Control+Enter")
    expect(transcript(page).locator(".model small")).to_have_text(re.compile("^6 tokens"))
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.key ?? ''").startswith("fork "):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator(".pane")).to_have_count(2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(server, visit, pictures, scheme):
    page = in_text(visit(server.url, viewport={"width": 360, "height": 740}, color_scheme=scheme))
    set_sampling(page, max_tokens=30)
    send(page, "In the morning")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, "nothing sticks out"
    ground, text = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    dark = [sum(map(int, re.findall(r"\d+", one)[:3])) for one in (ground, text)]
    assert (dark[0] < dark[1]) == (scheme == "dark")
    page.screenshot(path=pictures / f"page_phone_{scheme}.png", full_page=True)


def test_the_load_is_live(server, visit):
    page = in_text(visit(server.url))
    set_sampling(page, **ENDLESS)
    page.get_by_role("textbox", name="What to send").fill("On and on")
    page.get_by_role("button", name="Send", exact=True).click()
    load = page.locator("#load")
    expect(load).to_contain_text("1 running")
    expect(page.locator("#rate polyline")).to_have_attribute("points", re.compile(r"\d"))
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(load).to_contain_text("0 running")
