// The sessions as a tree: forks below what they were forked from, marks below their session.

import {bytes} from '/page/pane.js';
import * as transcripts from '/page/transcripts.js';

const numbers = new Intl.NumberFormat('en');

function button(key, label, title, act) {
  const node = document.createElement('button');
  Object.assign(node, {type: 'button', textContent: label, title});
  node.setAttribute('aria-label', title);
  node.dataset.key = key;
  node.addEventListener('click', act);
  return node;
}

// A button that must be pressed twice.
function careful(key, label, title, act) {
  const node = button(key, label, title, () => {
    if (node.classList.contains('sure')) return act();
    node.classList.add('sure');
    node.textContent = 'Sure?';
  });
  node.addEventListener('blur', () => {
    node.classList.remove('sure');
    node.textContent = label;
  });
  return node;
}

const TIERS = {empty: 'empty', slot: 'in a slot', host: 'in host memory', disk: 'on disk'};

function invitation() {
  const text = document.createElement('p');
  text.className = 'note';
  text.textContent = 'No sessions yet. The first message opens one, and its forks appear below it.';
  return text;
}

export class Tree {
  #drawn = '';

  // acts: show, split, fork, mark, close (of a session's name), rewind, unmark (of a name and a
  // mark).
  constructor(element, acts) {
    this.element = element;
    this.acts = acts;
  }

  // shown: the names that stand in the panes.
  draw(sessions, shown) {
    const key = JSON.stringify([
      sessions.map((s) => [s.id, s.parent, s.position, s.tier, s.busy, s.marks, transcripts.title(s.id)]),
      shown,
    ]);
    if (key === this.#drawn) return;
    this.#drawn = key;
    const focused = this.element.contains(document.activeElement)
      ? document.activeElement.dataset.key
      : null;
    this.element.replaceChildren(sessions.length > 0 ? this.#list(this.#roots(sessions), shown) : invitation());
    if (focused) this.element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  // Names are used again, so that a session may be what its own parent was forked from.
  #roots(sessions) {
    const nodes = new Map(sessions.map((session) => [session.id, {session, children: []}]));
    const parent = (node) => nodes.get(node.session.parent);
    const inCircle = (node) => {
      const seen = new Set();
      let at = parent(node);
      for (; at && at !== node && !seen.has(at); at = parent(at)) seen.add(at);
      return at === node;
    };
    const roots = [];
    for (const node of nodes.values()) {
      const above = inCircle(node) ? null : parent(node);
      (above?.children ?? roots).push(node);
    }
    return roots;
  }

  #list(nodes, shown) {
    const list = document.createElement('ul');
    for (const node of nodes) list.append(this.#node(node, shown));
    return list;
  }

  #node({session, children}, shown) {
    const item = document.createElement('li');
    const name = session.id;
    const label = transcripts.title(name);
    const title = button(`show ${name}`, label, `Show ${label}`, () => this.acts.show(name));
    title.className = 'name';
    title.title = name;
    const facts = document.createElement('span');
    facts.className = 'facts';
    facts.textContent = session.busy ? 'busy' : numbers.format(session.position);
    facts.title = `${numbers.format(session.position)} tokens, ${TIERS[session.tier] ?? session.tier}, state ${
      bytes(session.state_bytes)}, ${bytes(session.host_bytes)} reserved`;
    const acts = document.createElement('span');
    acts.className = 'acts';
    acts.append(
      button(`fork ${name}`, 'Fork', `Fork ${label}`, () => this.acts.fork(name)),
      button(`mark ${name}`, 'Mark', `Mark where ${label} is`, () => this.acts.mark(name)),
      button(`split ${name}`, 'Split', `Show ${label} in a second pane`, () => this.acts.split(name)),
      careful(`close ${name}`, 'Close', `Close ${label}`, () => this.acts.close(name)),
    );
    const row = document.createElement('div');
    row.className = 'session';
    if (shown.includes(name)) {
      title.setAttribute('aria-current', 'true');
      row.classList.add('current');
    }
    row.append(title, facts, acts);
    item.append(row);
    const below = document.createElement('ul');
    below.append(...session.marks.map((mark) => this.#mark(name, mark)));
    below.append(...children.map((child) => this.#node(child, shown)));
    if (below.children.length > 0) item.append(below);
    return item;
  }

  #mark(name, mark) {
    const item = document.createElement('li');
    item.className = 'mark';
    const title = document.createElement('span');
    title.textContent = `⚑ ${mark.name}`;
    const facts = document.createElement('span');
    facts.className = 'facts';
    facts.textContent = `at ${numbers.format(mark.position)}`;
    const acts = document.createElement('span');
    acts.className = 'acts';
    const at = `${name} ${mark.name}`;
    const label = transcripts.title(name);
    acts.append(
      button(`rewind ${at}`, 'Rewind', `Rewind ${label} to ${mark.name}`,
        () => this.acts.rewind(name, mark.name)),
      careful(`unmark ${at}`, 'Forget', `Forget the mark ${mark.name} of ${label}`,
        () => this.acts.unmark(name, mark.name)),
    );
    item.append(title, facts, acts);
    return item;
  }
}
