// One part of a transcript as elements: a system prompt, what the user sent, or an answer.

import {copyButton, showMarkdown} from '/page/markdown.js';
import {spanOf} from '/page/tokens.js';

const numbers = new Intl.NumberFormat('en', {maximumFractionDigits: 1});

const ENDS = {
  length: 'token limit',
  stop: 'end of turn',
  stopped: 'stopped',
  broken: 'interrupted',
};

// Tokens per second: after the first one, unless that time is too short to be measured.
function speed({tokens, first, seconds}) {
  const after = seconds - first;
  return after >= 0.5 ? (tokens.length - 1) / after : tokens.length / seconds;
}

function element(tag, className, ...children) {
  const node = document.createElement(tag);
  node.className = className;
  node.append(...children);
  return node;
}

function button(label, act) {
  const node = element('button', 'quiet', label);
  node.type = 'button';
  node.addEventListener('click', act);
  return node;
}

function folded(className, title, text) {
  const body = element('div', 'plain-text', text);
  return element('details', className, element('summary', '', title), body);
}

// Text that is edited in place: send(text) with what it has become.
function editor(text, send, cancel) {
  const area = element('textarea', '');
  area.value = text;
  area.setAttribute('aria-label', 'Edited message');
  const form = element('form', 'edit', area,
    element('div', 'row', element('button', 'main', 'Send as a fork'), button('Cancel', cancel)));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    send(area.value);
  });
  form.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') cancel();
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return form;
}

// edit(text): the user wants another text in its place.
export function drawUser(part, edit) {
  const said = element('div', 'user', part.text);
  const acts = element('footer', '', copyButton('Copy message', () => part.text),
    button('Edit', () => {
      const form = editor(part.text, edit, () => form.replaceWith(said, acts));
      said.remove();
      acts.replaceWith(form);
      form.querySelector('textarea').focus();
    }));
  return element('article', 'turn', said, acts);
}

export const drawSystem = (part) => folded('system', 'System prompt', part.text);

// An answer, which may still grow.
export class Answer {
  #shown = 0;  // its tokens that are shown
  #formatted;

  // again(): the user wants another answer.
  constructor(part, again) {
    this.part = part;
    this.again = again;
    this.#formatted = part.mode === 'chat' || part.tokens.length === 0 && part.text !== '';
    this.reasoning = folded('reasoning', 'Reasoning', '');
    this.body = element('div', '');
    this.foot = element('footer', '');
    this.node = element('article', 'model', this.reasoning, this.body, this.foot);
    this.redraw();
  }

  redraw() {
    this.body.replaceChildren();
    this.body.className = this.#formatted ? 'prose' : 'tokens';
    this.#shown = 0;
    this.grow();
    this.#drawFoot();
  }

  // Shows what has come since.
  grow() {
    const {reasoning, text, tokens} = this.part;
    this.reasoning.hidden = !reasoning;
    if (reasoning) this.reasoning.lastElementChild.textContent = reasoning;
    if (this.#formatted) return showMarkdown(this.body, text);
    this.body.append(...tokens.slice(this.#shown).map(spanOf));
    this.#shown = tokens.length;
  }

  #drawFoot() {
    const {finish, tokens, first, seconds, text} = this.part;
    this.foot.replaceChildren();
    if (!finish || finish === 'open') return;
    const facts = [`${numbers.format(tokens.length)} tokens`];
    if (seconds > 0) facts.push(`${numbers.format(speed(this.part))} tokens/s`);
    facts.push(ENDS[finish] ?? finish);
    const summary = element('small', '', facts.join(', '));
    if (seconds > 0) summary.title = `first token after ${first} s, last after ${seconds} s`;
    this.foot.append(summary, copyButton('Copy answer', () => text),
      button('Regenerate', this.again));
    if (tokens.length > 0) {
      this.foot.append(button(this.#formatted ? 'Tokens' : 'Formatted', () => {
        this.#formatted = !this.#formatted;
        this.redraw();
        this.foot.lastElementChild.focus();
      }));
    }
  }
}
