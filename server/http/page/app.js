// Puts the page together: sessions, the branches that are shown, and the server's load.

import * as api from '/page/api.js';
import {Load} from '/page/load.js';
import {Pane, bytes} from '/page/pane.js';
import * as transcripts from '/page/transcripts.js';
import {Tree} from '/page/tree.js';

const LOOK_EVERY_MS = 1000;
const CONTROLS = 'recurve.controls';

const byId = (id) => document.getElementById(id);
const controls = byId('controls');
const load = new Load(byId('load'), byId('rate'));

let sessions = [];
let chatProblem = null;
let panes = [];

// The fields of a request, as the controls have them; those left empty are the server's defaults.
function settings() {
  const field = (name) => controls.elements[name].value;
  const said = {alternatives: Number(field('alternatives'))};
  for (const name of ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'max_tokens', 'seed']) {
    if (field(name) !== '') said[name] = Number(field(name));
  }
  if (field('stop') !== '') said.stop = field('stop').replaceAll('\\n', '\n');
  return said;
}

function keepControls() {
  const values = {};
  for (const input of controls.elements) {
    values[input.name] = input.type === 'checkbox' ? input.checked : input.value;
  }
  localStorage.setItem(CONTROLS, JSON.stringify(values));
  document.body.classList.toggle('plain', !controls.elements.colours.checked);
}

function restoreControls() {
  try {
    for (const [name, value] of Object.entries(JSON.parse(localStorage.getItem(CONTROLS) ?? '{}'))) {
      const input = controls.elements[name];
      if (!input) continue;
      if (input.type === 'checkbox') input.checked = value;
      else input.value = value;
    }
  } catch {
    // What cannot be read is left as the page has it.
  }
  keepControls();
}

// Asks for a name in a dialog; null: never mind.
function askName(title, label, name, required) {
  const dialog = byId('ask');
  byId('ask-title').textContent = title;
  byId('ask-label').textContent = label;
  const input = byId('ask-name');
  Object.assign(input, {value: name, required});
  dialog.returnValue = 'no';
  dialog.showModal();
  input.select();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes' ? input.value : null), {once: true});
  });
}

// A name after the others: "m1", "m2".
function next(prefix, taken) {
  let n = 1;
  while (taken.includes(prefix + n)) ++n;
  return prefix + n;
}

function status(text, bad) {
  byId('status').textContent = text;
  document.body.classList.toggle('offline', Boolean(bad));
}

// Carries out what the user wants, and says why it could not be.
async function act(what) {
  try {
    await what();
    status('');
  } catch (error) {
    status(error.message, error instanceof api.Unreachable);
  }
  await look();
}

const shown = () => panes.map((pane) => pane.name).filter((name) => name !== null);

function addPane(name) {
  const pane = new Pane({
    settings,
    changed: () => look(),
    hide: () => hide(pane),
    others: () => panes.filter((other) => other !== pane),
    open: async (into) => {
      const made = await api.open();
      transcripts.forget(made.id);
      into.name = null;
      adopt(into, made.id);
    },
  });
  panes.push(pane);
  byId('panes').append(pane.element);
  if (name) pane.show(name);
  arrange();
  return pane;
}

// A session that is made while a pane's answer begins.
function adopt(pane, name) {
  pane.name = name;
  pane.parts.title.textContent = name;
  pane.element.setAttribute('aria-label', `Session ${name}`);
  pane.parts.facts.textContent = '';
  pane.redraw();
  arrange();
}

function hide(pane) {
  if (panes.length === 1) return;
  pane.show(null);
  pane.element.remove();
  panes = panes.filter((other) => other !== pane);
  arrange();
}

// What is shown is in the address, so that it is there again after a reload.
function arrange() {
  for (const pane of panes) pane.setAlone(panes.length === 1, chatProblem);
  byId('panes').className = panes.length > 1 ? 'two' : '';
  const hash = shown().map(encodeURIComponent).join('&');
  history.replaceState(null, '', hash ? `#${hash}` : location.pathname);
}

function show(name, place) {
  const there = panes.find((pane) => pane.name === name);
  if (there) return there.parts.text.focus();
  if (place < panes.length) panes[place].show(name);
  else addPane(name);
  arrange();
  return look();
}

const tree = new Tree(byId('tree'), {
  show: (name) => show(name, 0),
  beside: (name) => show(name, 1),
  fork: async (name) => {
    const to = await askName(`Fork ${name}`, 'Name of the fork', next(`${name}.`.slice(-100), sessions.map((s) => s.id)), false);
    if (to === null) return;
    await act(async () => {
      const fork = await api.fork(name, to);
      transcripts.forked(name, fork.id, fork.position);
      if (panes[0].name === null) show(name, 0);
      show(fork.id, 1);
    });
  },
  mark: async (name) => {
    const session = sessions.find((one) => one.id === name);
    const mark = await askName(`Mark ${name}`, 'Name of the mark', next('m', session?.marks.map((m) => m.name) ?? []), true);
    if (mark === null) return;
    await act(async () => {
      await api.mark(name, mark);
      transcripts.marked(name, mark);
    });
  },
  close: (name) => act(async () => {
    await api.close(name);
    transcripts.forget(name);
    for (const pane of panes.filter((one) => one.name === name)) {
      if (panes.length > 1) hide(pane);
      else pane.show(null);
    }
    arrange();
  }),
  rewind: (name, mark) => act(async () => {
    const session = await api.rewind(name, mark);
    transcripts.rewound(name, mark, session.position);
    for (const pane of panes.filter((one) => one.name === name)) pane.redraw();
  }),
  unmark: (name, mark) => act(() => api.unmark(name, mark)),
});

// Looks at what the server has. One look at a time: another that is wanted meanwhile follows it.
let looking = null, again = false;
function look() {
  if (looking) {
    again = true;
    return looking;
  }
  looking = lookOnce().finally(() => {
    looking = null;
    if (again) {
      again = false;
      return look();
    }
  });
  return looking;
}

async function lookOnce() {
  try {
    const [now, all] = await Promise.all([api.load(), api.sessions()]);
    load.take(now, performance.now() / 1000);
    byId('model').textContent = now.model;
    byId('state').textContent =
      `Each state takes ${bytes(now.state_bytes)}, however long its text has become.`;
    sessions = all;
    const problem = now.chat ? null : (now.chat_problem || 'The model has no chat template.');
    if (problem !== chatProblem) {
      chatProblem = problem;
      arrange();
    }
    for (const pane of panes) pane.update(all.find((one) => one.id === pane.name) ?? null);
    tree.draw(all, shown());
    if (document.body.classList.contains('offline')) status('');
  } catch (error) {
    load.lost();
    const unreachable = error instanceof api.Unreachable;
    status(unreachable ? 'The server cannot be reached; trying again.' : error.message, true);
  }
}

async function lookAgainAndAgain() {
  for (;;) {
    if (document.visibilityState === 'visible') await look();
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
  }
}

byId('open').addEventListener('click', async () => {
  const name = await askName('A new session', 'Name', '', false);
  if (name === null) return;
  await act(async () => {
    const made = await api.open(name);
    transcripts.forget(made.id);
    show(made.id, 0);
  });
});
byId('ask-no').addEventListener('click', () => byId('ask').close('no'));
controls.addEventListener('input', keepControls);
controls.addEventListener('submit', (event) => event.preventDefault());
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible') look();
});

restoreControls();
const wanted = location.hash.slice(1).split('&').filter(Boolean).map(decodeURIComponent);
addPane(wanted[0] ?? null);
if (wanted[1]) addPane(wanted[1]);
lookAgainAndAgain();
