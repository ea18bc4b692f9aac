// One branch: a session's text as far as this browser knows it, and what is sent to it.

import * as api from '/page/api.js';
import {makeChoosable, spanOf} from '/page/tokens.js';
import * as transcripts from '/page/transcripts.js';

const numbers = new Intl.NumberFormat('en');

export const bytes = (count) => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; ++unit) count /= 1024;
  return `${unit === 0 ? count : count.toFixed(1)} ${units[unit]}`;
};

const ENDS = {
  length: 'as many tokens as asked for',
  stop: 'ended by itself',
  stopped: 'stopped',
  broken: 'broken off',
};

const round = (p) => Number(p.toPrecision(4));
// What has come is shown, and kept, so often; or as often as leaves the browser most of its time.
const SHOW_EVERY_MS = 40;
const SAVE_EVERY_MS = 500;

export class Pane {
  #running = null;  // what aborts the answer under way
  #part = null;     // that answer
  #saved = 0;     // when the last of it was kept, and how long that took
  #saveTook = 0;
  #unshown = [];  // its tokens that are still to be shown
  #showing = null;
  #showTook = 0;

  // settings(): the sampling of a request. changed(name): the session has changed. hide(): the user
  // wants it gone. others(): the panes beside it. open(): makes a session and resolves to its name.
  constructor({settings, changed, hide, others, open}) {
    Object.assign(this, {settings, changed, others, open, name: null});
    this.element = document.getElementById('pane').content.firstElementChild.cloneNode(true);
    const find = (selector) => this.element.querySelector(selector);
    this.parts = {
      title: find('h2'), facts: find('.facts'), note: find('.note'), error: find('.error'),
      transcript: find('.transcript'), send: find('.send'), stop: find('.stop'),
      text: find('textarea'), both: find('.both'), away: find('.away'),
      modes: [...this.element.querySelectorAll('[type=radio]')],
    };
    const group = `mode-${Math.random()}`;
    for (const mode of this.parts.modes) mode.name = group;
    this.choosable = makeChoosable(this.parts.transcript, find('.alternatives'));
    this.parts.away.addEventListener('click', hide);
    this.parts.stop.addEventListener('click', () => this.#running?.abort());
    const form = find('form');
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.parts.text.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    this.show(null);
  }

  get running() {
    return this.#running !== null;
  }

  // Shows another session; null: none yet, one is made when something is sent.
  show(name) {
    if (this.name !== null && name === this.name) return;
    this.#running?.abort();
    this.name = name;
    this.parts.title.textContent = name ?? 'A new session';
    this.element.setAttribute('aria-label', `Session ${name ?? 'to be made'}`);
    this.parts.facts.textContent = '';
    this.#say(null);
    this.redraw();
  }

  redraw() {
    this.choosable.clear();
    const nodes = transcripts.of(this.name).parts.map((part) => this.#draw(part));
    this.parts.transcript.replaceChildren(...nodes);
    this.parts.transcript.scrollTop = this.parts.transcript.scrollHeight;
  }

  setAlone(alone, chatProblem) {
    this.parts.both.hidden = alone;
    this.parts.away.hidden = alone;
    const chat = this.parts.modes.find((mode) => mode.value === 'chat');
    chat.disabled = Boolean(chatProblem);
    chat.parentElement.title = chatProblem ?? '';
    if (chat.disabled && chat.checked) this.parts.modes[0].checked = true;
  }

  // Takes what the server says of the session; null: it is not there any more.
  update(info) {
    if (this.running || this.name === null) return;
    if (info === null) {
      this.parts.facts.textContent = 'closed';
      return this.#note('The server has closed this session. What is sent now begins a new one.');
    }
    this.info = info;
    this.#facts(info);
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

  #facts(info) {
    this.parts.facts.textContent =
      `${numbers.format(info.position)} tokens, state ${bytes(info.state_bytes)}`;
    this.parts.facts.title = 'However long the text, the state has this size.';
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
    const node = document.createElement('div');
    node.className = part.who;
    if (part.tokens.length > 0) {
      node.append(...part.tokens.map(spanOf));
    } else {
      node.textContent = part.text;
    }
    if (part.finish && part.finish !== 'open') this.#end(node, part);
    return node;
  }

  #end(node, part) {
    const end = document.createElement('small');
    end.textContent = `${part.tokens.length} tokens, ${ENDS[part.finish] ?? part.finish}`;
    node.append(end);
  }

  #submit() {
    const asked = {
      text: this.parts.text.value,
      chat: this.parts.modes.find((mode) => mode.checked).value === 'chat',
    };
    const both = !this.parts.both.hidden && this.parts.both.querySelector('input').checked;
    this.parts.text.value = '';
    for (const pane of both ? [this, ...this.others()] : [this]) pane.send(asked);
  }

  // Sends a text and shows the answer as it comes.
  async send(asked) {
    if (this.running) return this.#say('An answer is under way: wait for its end or stop it.');
    const controller = new AbortController();
    this.#begin(controller);
    try {
      if (this.name === null || this.parts.facts.textContent === 'closed') await this.open(this);
      await this.#stream(asked, controller.signal);
    } catch (error) {
      this.#broken(error, asked);
    }
    this.#running = null;
    this.parts.send.disabled = false;
    this.parts.stop.disabled = true;
    await this.#settle();
  }

  #begin(controller) {
    this.#say(null);
    this.#running = controller;
    this.parts.send.disabled = true;
    this.parts.stop.disabled = false;
  }

  async #stream(asked, signal) {
    const name = this.name;
    const transcript = transcripts.of(name);
    const part = {who: 'model', text: '', tokens: [], finish: 'open'};
    const mine = asked.text === '' ? [] : [{who: 'user', text: asked.text, tokens: []}];
    transcript.parts.push(...mine, part);
    this.#part = {name, transcript, part, mine};
    const node = this.#draw(part);
    this.parts.transcript.append(...mine.map((one) => this.#draw(one)), node);
    this.parts.transcript.scrollTop = this.parts.transcript.scrollHeight;
    try {
      await api.generate(name, asked, this.settings(), signal, (event) => this.#take(event, part, node));
    } finally {
      this.#show(node);
    }
    this.#fit(part, node);
  }

  #take({text, tokens, finish}, part, node) {
    part.text += text;
    for (const token of tokens) {
      token.p = round(token.p);
      token.top = token.top.map(([name, p]) => [name, round(p)]);
      part.tokens.push(token);
      this.#unshown.push(token);
    }
    if (finish) part.finish = finish;
    this.#showing ??= setTimeout(() => this.#show(node),
      Math.max(SHOW_EVERY_MS, 3 * this.#showTook));
    if (performance.now() - this.#saved > Math.max(SAVE_EVERY_MS, 20 * this.#saveTook)) this.#save();
  }

  // Shows what has come, and goes along with it where the end was in view.
  #show(node) {
    clearTimeout(this.#showing);
    this.#showing = null;
    const began = performance.now();
    const area = this.parts.transcript;
    const atEnd = area.scrollTop + area.clientHeight >= area.scrollHeight - 40;
    node.append(...this.#unshown.splice(0).map(spanOf));
    if (atEnd) area.scrollTop = area.scrollHeight;
    this.#showTook = performance.now() - began;
  }

  // A text that ends at a stop string ends before the last token does.
  #fit(part, node) {
    let left = part.text.length;
    const all = part.tokens.map((token) => token.text).join('');
    if (!all.startsWith(part.text) || all.length === left) return;
    for (const token of part.tokens) {
      token.text = token.text.slice(0, Math.max(0, left));
      left -= token.text.length;
    }
    node.replaceChildren(...part.tokens.map(spanOf));
  }

  // What was refused before anything came is as good as not sent.
  #broken(error, asked) {
    const stopped = error.name === 'AbortError';
    if (!stopped) this.#say(error.message);
    const under = this.#part;
    if (under && under.part.tokens.length > 0) {
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
    if (this.#part) transcripts.put(this.#part.name, this.#part.transcript);
    this.#saved = performance.now();
    this.#saveTook = this.#saved - began;
  }

  // Asks what has become of the session: an answer that was stopped ends a moment later.
  async #settle() {
    const under = this.#part;
    this.#part = null;
    if (under === null) return;
    try {
      let info = await api.session(under.name);
      for (let i = 0; i < 20 && info.busy; ++i) {
        await new Promise((resolve) => setTimeout(resolve, 50));
        info = await api.session(under.name);
      }
      under.transcript.position = info.position;
      transcripts.put(under.name, under.transcript);
      if (under.name === this.name) {
        this.redraw();
        this.update(info);
      }
    } catch {
      transcripts.put(under.name, under.transcript);
      if (under.name === this.name) this.redraw();
    }
    this.changed(under.name);
  }
}
