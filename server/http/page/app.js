// Puts the page together: sessions, the branches that are shown, and the server's load.

import {Access} from '/page/access.js';
import * as api from '/page/api.js';
import {Load} from '/page/load.js';
import {Pane} from '/page/pane.js';
import {Settings} from '/page/settings.js';
import * as transcripts from '/page/transcripts.js';
import {Tree} from '/page/tree.js';

const LOOK_EVERY_MS = 1000;

const byId = (id) => document.getElementById(id);
const load = new Load(byId('load'), byId('rate'));
const settings = new Settings(byId('controls'), (now) => document.body.classList.toggle('plain', !now.colours));
const access = new Access(byId('access'), byId('forget'), () => {
  forgetServer();
  look();
});

let sessions = [];
let chatProblem = null;
let panes = [];
let model = null;     // of a key that may not see the load: what the server says of its model
let observes = true;  // whether this key may see the load

// Asks for a name in a dialog; null: the user has cancelled it.
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

// Carries out what the user wants, and shows why it could not be.
async function act(what) {
  try {
    await what();
    status('');
  } catch (error) {
    status(api.isStop(error) ? '' : error.message, error instanceof api.Unreachable);
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
      transcripts.put(made.id, {parts: [], marks: {}, position: 0, title: ''});
      adopt(into, made.id);
    },
    branch,
  });
  panes.push(pane);
  byId('panes').append(pane.element);
  if (name) pane.show(name);
  arrange();
  return pane;
}

// A session that is opened or forked while a pane's answer begins.
function adopt(pane, name) {
  pane.adopt(name);
  arrange();
}

// Shows in a pane a fork of its session, as that was at a position, with its first `count` parts.
async function branch(pane, count, position) {
  const from = pane.name;
  const fork = await api.fork(from);
  try {
    await api.rewind(fork.id, {position});
  } catch (error) {
    await api.close(fork.id).catch(() => {});
    throw error;
  }
  transcripts.branched(from, fork.id, count, position);
  adopt(pane, fork.id);
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

function show(name, index) {
  setDrawer(false);
  const there = panes.find((pane) => pane.name === name);
  if (there) return there.parts.text.focus();
  const pane = panes[index] ?? addPane(name);
  pane.show(name);
  pane.element.scrollIntoView({block: 'nearest', inline: 'start'});  // a phone shows one of them
  arrange();
  return look();
}

const tree = new Tree(byId('tree'), {
  show: (name) => show(name, 0),
  split: (name) => show(name, 1),
  fork: async (name) => {
    const titled = transcripts.of(name).title;
    const to = await askName(`Fork ${transcripts.title(name)}`, 'Name, or empty for a title',
      titled ? '' : next(`${name}.`.slice(-100), sessions.map((s) => s.id)), false);
    if (to === null) return;
    await act(async () => {
      const fork = await api.fork(name, to);
      transcripts.forked(name, fork.id, fork.position, to === '');
      if (panes[0].name === null) show(name, 0);
      show(fork.id, 1);
    });
  },
  mark: async (name) => {
    const session = sessions.find((one) => one.id === name);
    const mark = await askName(`Mark ${transcripts.title(name)}`, 'Name of the mark',
      next('m', session?.marks.map((m) => m.name) ?? []), true);
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
    const session = await api.rewind(name, {mark});
    transcripts.rewound(name, mark, session.position);
    for (const pane of panes.filter((one) => one.name === name)) pane.redraw();
  }),
  unmark: (name, mark) => act(() => api.unmark(name, mark)),
});

// Asks what the server has. One look at a time: another that is wanted meanwhile follows it.
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
  if (access.refused) return;
  try {
    const all = await api.sessions();
    await lookAtServer();
    sessions = all;
    for (const pane of panes) pane.update(all.find((one) => one.id === pane.name) ?? null);
    tree.draw(all, shown());
    if (document.body.classList.contains('offline')) status('');
  } catch (error) {
    if (api.isStop(error)) return;
    load.lost();
    if (error.status === 401) return access.needed();
    const unreachable = error instanceof api.Unreachable;
    status(unreachable ? 'The server cannot be reached; trying again.' : error.message, true);
  }
}

// The load, or what a key that may not see it can know of the model.
async function lookAtServer() {
  if (observes) {
    try {
      const now = await api.load();
      load.take(now, performance.now() / 1000);
      return setModel(now.model, now.chat ? null : (now.chat_problem || 'The model has no chat template.'));
    } catch (error) {
      if (error.status !== 403) throw error;
      observes = false;
    }
  }
  byId('server').hidden = true;
  if (model !== null) return;
  const names = await api.models();
  const problem = await api.tryChat().then(() => null, (error) => {
    if (error.status !== 400) throw error;
    return error.message;
  });
  model = names.data[0]?.id ?? '';
  setModel(model, problem);
}

function setModel(name, problem) {
  byId('model').textContent = name;
  document.title = `${name} - Recurve`;
  if (problem === chatProblem) return;
  chatProblem = problem;
  arrange();
}

// Another key may see other things.
function forgetServer() {
  model = null;
  observes = true;
  byId('server').hidden = false;
  sessions = [];
  tree.draw([], []);
  while (panes.length > 1) hide(panes.at(-1));
  panes[0].show(null);
  arrange();
}

async function lookAgainAndAgain() {
  for (;;) {
    if (document.visibilityState === 'visible') await look();
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
  }
}

// On a phone the sessions are in a drawer.
function setDrawer(open) {
  document.body.classList.toggle('drawer', open);
  byId('menu').setAttribute('aria-expanded', String(open));
}

byId('menu').addEventListener('click', () => {
  const open = !document.body.classList.contains('drawer');
  setDrawer(open);
  if (open) byId('open').focus();
});
byId('shade').addEventListener('click', () => setDrawer(false));
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || !document.body.classList.contains('drawer')) return;
  setDrawer(false);
  byId('menu').focus();
});
byId('open').addEventListener('click', async () => {
  const name = await askName('New session', 'Name, or empty for a title', '', false);
  if (name === null) return;
  if (name === '') {  // the first message opens it
    setDrawer(false);
    panes[0].show(null);
    arrange();
    panes[0].parts.text.focus();
    return look();
  }
  await act(async () => {
    const made = await api.open(name);
    transcripts.forget(made.id);
    show(made.id, 0);
  });
});
byId('ask-no').addEventListener('click', () => byId('ask').close('no'));
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible') look();
});

const wanted = location.hash.slice(1).split('&').filter(Boolean).map(decodeURIComponent);
addPane(wanted[0] ?? null);
if (wanted[1]) addPane(wanted[1]);
lookAgainAndAgain();
