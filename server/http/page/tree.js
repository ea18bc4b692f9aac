// The sessions as a tree: forks below what they were forked from, marks below their session.

import {bytes} from '/page/pane.js';

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

export class Tree {
  #drawn = '';

  // acts: show, beside, fork, mark, close (of a session's name), rewind, unmark (of a name and a
  // mark).
  constructor(element, acts) {
    this.element = element;
    this.acts = acts;
  }

  // shown: the names that stand in the panes.
  draw(sessions, shown) {
    const key = JSON.stringify([
      sessions.map((s) => [s.id, s.parent, s.position, s.tier, s.busy, s.marks]),
      shown,
    ]);
    if (key === this.#drawn) return;
    this.#drawn = key;
    const focused = this.element.contains(document.activeElement)
      ? document.activeElement.dataset.key
      : null;
    this.element.replaceChildren(this.#list(this.#roots(sessions), shown));
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
    const title = button(`show ${name}`, name, `Show ${name}`, () => this.acts.show(name));
    title.className = 'name';
    if (shown.includes(name)) title.setAttribute('aria-current', 'true');
    const facts = document.createElement('span');
    facts.className = 'facts';
    facts.textContent = `${numbers.format(session.position)} tokens, ${
      session.busy ? 'busy' : TIERS[session.tier] ?? session.tier}`;
    facts.title = `state ${bytes(session.state_bytes)}, ${bytes(session.host_bytes)} reserved`;
    const acts = document.createElement('span');
    acts.className = 'acts';
    acts.append(
      button(`beside ${name}`, 'Beside', `Show ${name} beside the other`, () => this.acts.beside(name)),
      button(`fork ${name}`, 'Fork', `Fork ${name}`, () => this.acts.fork(name)),
      button(`mark ${name}`, 'Mark', `Mark where ${name} is`, () => this.acts.mark(name)),
      careful(`close ${name}`, 'Close', `Close ${name}`, () => this.acts.close(name)),
    );
    item.append(title, facts, acts);
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
    acts.append(
      button(`rewind ${at}`, 'Rewind', `Rewind ${name} to ${mark.name}`,
        () => this.acts.rewind(name, mark.name)),
      careful(`unmark ${at}`, 'Forget', `Forget the mark ${mark.name} of ${name}`,
        () => this.acts.unmark(name, mark.name)),
    );
    item.append(title, facts, acts);
    return item;
  }
}
