// One branch: a session's text as far as this browser knows it, and what is sent to it.

import * as api from '/page/api.js';
import {Answer, drawSystem, drawUser} from '/page/message.js';
import {makeChoosable} from '/page/tokens.js';
import * as transcripts from '/page/transcripts.js';

const numbers = new Intl.NumberFormat('en');

export const bytes = (count) => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; ++unit) count /= 1024;
  return `${unit === 0 ? count : count.toFixed(1)} ${units[unit]}`;
};

const HINTS = {
  chat: 'Enter sends. Shift+Enter starts a new line.',
  text: 'Ctrl+Enter sends. An empty text continues the answer.',
};
const INVITATIONS = {
  chat: ['Start a conversation', 'It stays on the server as one state, which you can fork and rewind.',
    ['Tell me a story about a lighthouse.', 'Explain tides to a child.', 'Plan a quiet Sunday.']],
  text: ['Begin a text', 'The model continues it. Each token shows how likely it was.',
    ['Once upon a time', 'It was a dark night', 'Call me Ishmael.']],
};

const round = (p) => Number(p.toPrecision(4));
// What has come is shown, and stored, so often; or as often as leaves the browser most of its time.
const SHOW_EVERY_MS = 40;
const SAVE_EVERY_MS = 500;
const fingers = matchMedia('(pointer: coarse)');

export class Pane {
  #running = null;  // what aborts the current answer
  #answer = null;   // that answer
  #saved = 0;       // when the last of it was stored, and how long that took
  #saveTook = 0;
  #showing = null;
  #showTook = 0;
  #chatProblem = null;

  // settings: see settings.js. changed(name): the session has changed. hide(): the user does not want
  // to see it. others(): the other panes. open(pane): opens a session and shows it there.
  // branch(pane, count, position): shows a fork there, rewound to its first `count` parts.
  constructor({settings, changed, hide, others, open, branch}) {
    Object.assign(this, {settings, changed, others, open, branch, name: null});
    this.element = document.getElementById('pane').content.firstElementChild.cloneNode(true);
    const find = (selector) => this.element.querySelector(selector);
    this.parts = {
      title: find('h2'), facts: find('.facts'), note: find(':scope > .note'), error: find('.error'),
      transcript: find('.transcript'), empty: find('.empty'), system: find('.system-prompt'),
      send: find('.send'), stop: find('.stop'), text: find('.what'), both: find('.both'),
      away: find('.away'), hint: find('.hint'), modes: [...this.element.querySelectorAll('[type=radio]')],
    };
    const group = `mode-${Math.random()}`;
    for (const mode of this.parts.modes) {
      mode.name = group;
      mode.addEventListener('change', () => {
        this.settings.mode = mode.value;
        this.#setMode(mode.value);
      });
    }
    this.choosable = makeChoosable(this.parts.transcript, find('.alternatives'));
    this.parts.away.addEventListener('click', hide);
    this.parts.stop.addEventListener('click', () => this.#running?.abort());
    this.#listen(find('.composer'));
    this.show(null);
  }

  #listen(form) {
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.parts.text.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.isComposing) return;
      const plain = this.mode === 'chat' && !event.shiftKey && !fingers.matches;
      if (!event.ctrlKey && !event.metaKey && !plain) return;
      event.preventDefault();
      form.requestSubmit();
    });
  }

  get running() {
    return this.#running !== null;
  }

  get mode() {
    return this.parts.modes.find((mode) => mode.checked).value;
  }

  // Shows another session; null: none yet, one is opened when something is sent.
  show(name) {
    if (this.name !== null && name === this.name) return;
    this.#running?.abort();
    this.#rename(name);
    this.#setMode(transcripts.of(name).mode ?? this.settings.mode);
    this.#say(null);
    this.redraw();
  }

  // The session that the next answer belongs to.
  adopt(name) {
    this.#rename(name);
    this.redraw();
  }

  #rename(name) {
    this.name = name;
    this.parts.facts.textContent = '';
    this.#retitle();
  }

  #retitle() {
    this.parts.title.textContent = this.name === null ? 'New session' : transcripts.title(this.name);
    this.parts.title.title = this.name ?? '';
    this.element.setAttribute('aria-label',
      this.name === null ? 'New session' : `Session ${transcripts.title(this.name)}`);
  }

  #setMode(wanted) {
    const mode = this.#chatProblem ? 'text' : wanted;
    for (const one of this.parts.modes) one.checked = one.value === mode;
    this.parts.hint.textContent = HINTS[mode];
    this.parts.text.placeholder = mode === 'chat' ? 'Message' : 'Text';
    this.#invite();
  }

  // What is shown before the first message.
  #invite() {
    const begun = transcripts.of(this.name).parts.length > 0;
    this.parts.empty.hidden = begun;
    if (begun) return;
    const [title, note, openings] = INVITATIONS[this.mode];
    const [heading, text, list] = this.parts.empty.children;
    heading.textContent = title;
    text.textContent = note;
    list.replaceChildren(...openings.map((opening) => {
      const button = document.createElement('button');
      Object.assign(button, {type: 'button', textContent: opening});
      button.addEventListener('click', () => {
        this.parts.text.value = opening;
        this.parts.text.focus();
      });
      return button;
    }));
    this.parts.system.hidden = this.mode !== 'chat';
  }

  redraw() {
    this.choosable.clear();
    const nodes = transcripts.of(this.name).parts.map((part) => this.#draw(part).node);
    this.parts.transcript.replaceChildren(...nodes);
    this.parts.transcript.scrollTop = this.parts.transcript.scrollHeight;
    this.#retitle();
    this.#invite();
  }

  // chatProblem: why the model cannot chat; null: it can.
  setAlone(alone, chatProblem) {
    this.parts.both.hidden = alone;
    this.parts.away.hidden = alone;
    const chat = this.parts.modes.find((mode) => mode.value === 'chat');
    chat.disabled = Boolean(chatProblem);
    chat.parentElement.title = chatProblem ?? '';
    if (chatProblem === this.#chatProblem) return;
    this.#chatProblem = chatProblem;
    this.#setMode(transcripts.of(this.name).mode ?? this.settings.mode);
  }

  // Takes what the server reports of the session; null: it is not there any more.
  update(info) {
    if (this.running || this.name === null) return;
    if (info === null) {
      this.parts.facts.textContent = 'closed';
      return this.#note('The server has closed this session. The next message opens a new one.');
    }
    this.parts.facts.textContent =
      `${numbers.format(info.position)} tokens, state ${bytes(info.state_bytes)}`;
    const transcript = transcripts.of(this.name);
    const last = transcript.parts.at(-1);
    if (last?.finish === 'open' && !info.busy) {  // the page was left in the middle of it
      last.finish = 'broken';
      transcripts.put(this.name, {...transcript, position: info.position});
      this.redraw();
    }
    const strange = info.position !== transcripts.of(this.name).position && !info.busy;
    this.#note(strange ? 'The session has absorbed text that this browser has not seen.' : '');
  }

  #note(text) {
    this.parts.note.textContent = text;
    this.parts.note.hidden = text === '';
  }

  #say(error) {
    this.parts.error.textContent = error ?? '';
    this.parts.error.hidden = !error;
  }

  #draw(part) {
    if (part.who === 'system') return {node: drawSystem(part)};
    if (part.who === 'user') return {node: drawUser(part, (text) => this.#again(part, text))};
    return new Answer(part, () => this.#again(part));
  }

  // Sends the turn of a part again, in a fork of the session before it; with another text, if given.
  #again(part, text) {
    const {parts} = transcripts.of(this.name);
    const index = parts.indexOf(part);
    let first = index > 0 && part.who === 'model' && parts[index - 1].who === 'user' ? index - 1 : index;
    const {before, text: old} = parts[first];
    const answer = parts[first].who === 'model' ? parts[first] : parts[first + 1];
    if (before === undefined) {
      return this.#say('This browser does not know where this turn begins. Send it in a new session.');
    }
    const asked = {text: text ?? (parts[first].who === 'user' ? old : ''), chat: answer?.mode === 'chat'};
    if (parts[first - 1]?.who === 'system') asked.system = parts[--first].text;
    return this.send(asked, () => this.branch(this, first, before));
  }

  #submit() {
    const system = this.parts.system.querySelector('textarea');
    const asked = {text: this.parts.text.value, chat: this.mode === 'chat'};
    if (asked.chat && asked.text.trim() === '') return;
    if (!this.parts.empty.hidden && asked.chat) asked.system = system.value.trim();
    const both = !this.parts.both.hidden && this.parts.both.querySelector('input').checked;
    this.parts.text.value = '';
    for (const pane of both ? [this, ...this.others()] : [this]) pane.send(asked);
  }

  // Sends {text, chat, system} and shows the answer as it comes. prepare(): sees to the session.
  async send(asked, prepare = () => this.#openIfNone()) {
    if (this.running) return this.#say('An answer is running: wait for its end or stop it.');
    const controller = new AbortController();
    this.#begin(controller);
    try {
      await prepare();
      await this.#stream(asked, controller.signal);
    } catch (error) {
      this.#broken(error, asked);
    }
    this.#running = null;
    this.#offer(this.parts.send, this.parts.stop);
    await this.#settle();
  }

  async #openIfNone() {
    if (this.name === null || this.parts.facts.textContent === 'closed') await this.open(this);
  }

  #begin(controller) {
    this.#say(null);
    this.#running = controller;
    this.#offer(this.parts.stop, this.parts.send);
  }

  // Shows one button in place of another.
  #offer(button, other) {
    if (document.activeElement === other) this.parts.text.focus();
    button.hidden = false;
    other.hidden = true;
  }

  // Adds the turn to the transcript and to the page.
  #add({text, chat, system}, before) {
    const name = this.name;
    const transcript = transcripts.of(name);
    const part = {who: 'model', text: '', tokens: [], finish: 'open', mode: chat ? 'chat' : 'text', before};
    const mine = [];
    if (system) mine.push({who: 'system', text: system});
    if (text !== '') mine.push({who: 'user', text, before});
    if (transcript.title === '') transcript.title = transcripts.titled(text);
    transcript.mode = part.mode;
    transcript.parts.push(...mine, part);
    const shown = this.#draw(part);
    this.#answer = {name, transcript, part, mine, shown, sent: performance.now()};
    this.parts.transcript.append(...mine.map((one) => this.#draw(one).node), shown.node);
    this.parts.transcript.scrollTop = this.parts.transcript.scrollHeight;
    this.#retitle();
    this.#invite();
  }

  async #stream(asked, signal) {
    const {text, chat, system} = asked;
    const name = this.name;
    this.#add(asked, (await api.session(name)).position);
    const {part, shown} = this.#answer;
    const messages = [{role: 'user', content: text}];
    if (system) messages.unshift({role: 'system', content: system});
    try {
      await api.generate(name, chat ? {messages} : {prompt: text}, this.settings.request(chat), signal,
        (event) => this.#take(event));
    } finally {
      this.#show(shown);
    }
    if (this.#fit(part)) shown.redraw();
  }

  #take({text, reasoning, tokens, finish}) {
    const {part, shown} = this.#answer;
    part.text += text;
    if (reasoning) part.reasoning = (part.reasoning ?? '') + reasoning;
    for (const token of tokens) {
      token.p = round(token.p);
      token.top = token.top.map(([name, p]) => [name, round(p)]);
      part.tokens.push(token);
    }
    const now = performance.now();
    if (tokens.length > 0) {
      part.seconds = Math.round(now - this.#answer.sent) / 1000;
      part.first ??= part.seconds;
    }
    if (finish) part.finish = finish;
    this.#showing ??= setTimeout(() => this.#show(shown), Math.max(SHOW_EVERY_MS, 3 * this.#showTook));
    if (now - this.#saved > Math.max(SAVE_EVERY_MS, 20 * this.#saveTook)) this.#save();
  }

  // Shows what has come, and goes along with it where the end was in view.
  #show(shown) {
    clearTimeout(this.#showing);
    this.#showing = null;
    const began = performance.now();
    const area = this.parts.transcript;
    const atEnd = area.scrollTop + area.clientHeight >= area.scrollHeight - 40;
    shown.grow();
    if (atEnd) area.scrollTop = area.scrollHeight;
    this.#showTook = performance.now() - began;
  }

  // A text that ends at a stop string ends before the last token does. Whether it did.
  #fit(part) {
    let remaining = part.text.length;
    const all = part.tokens.map((token) => token.text).join('');
    if (!all.startsWith(part.text) || all.length === remaining) return false;
    for (const token of part.tokens) {
      token.text = token.text.slice(0, Math.max(0, remaining));
      remaining -= token.text.length;
    }
    return true;
  }

  // What was refused before anything came is as good as not sent.
  #broken(error, asked) {
    const stopped = api.isStop(error);
    if (!stopped) this.#say(error.message);
    const under = this.#answer;
    if (under && (under.part.tokens.length > 0 || under.part.text !== '')) {
      under.part.finish = stopped ? 'stopped' : 'broken';
      return;
    }
    if (under && !stopped) {
      under.transcript.parts.length -= 1 + under.mine.length;
      transcripts.put(under.name, under.transcript);
    } else if (under) {
      under.part.finish = 'stopped';
    }
    if (!stopped) this.parts.text.value ||= asked.text;
  }

  #save() {
    const began = performance.now();
    if (this.#answer) transcripts.put(this.#answer.name, this.#answer.transcript);
    this.#saved = performance.now();
    this.#saveTook = this.#saved - began;
  }

  // Asks what has become of the session: an answer that was stopped ends a moment later.
  async #settle() {
    const under = this.#answer;
    this.#answer = null;
    if (under === null) return;
    let info = null;
    try {
      info = await api.session(under.name);
      for (let i = 0; i < 20 && info.busy; ++i) {
        await new Promise((resolve) => setTimeout(resolve, 50));
        info = await api.session(under.name);
      }
      under.transcript.position = info.position;
    } catch {
      // The text stays; the next look shows what the server has.
    }
    transcripts.put(under.name, under.transcript);
    if (under.name === this.name) {
      this.redraw();
      if (info) this.update(info);
    }
    this.changed(under.name);
  }
}
