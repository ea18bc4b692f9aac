// What this browser remembers of the sessions' texts: the server keeps states, not texts. A
// transcript is {parts, marks, position}: its parts {who: 'user'|'model', text, tokens, finish}, how
// many parts there were at each mark, and how many tokens the session had absorbed by the last.

const KEY = 'recurve.transcripts';
const MOST = 100;

let all = new Map();
try {
  all = new Map(JSON.parse(localStorage.getItem(KEY) ?? '[]'));
} catch {
  // What cannot be read is begun anew.
}

// Those that were changed last stay, where there is no room for all.
function save() {
  while (all.size > MOST) all.delete(all.keys().next().value);
  while (all.size > 0) {
    try {
      localStorage.setItem(KEY, JSON.stringify([...all]));
      return;
    } catch {
      all.delete(all.keys().next().value);
    }
  }
}

export function of(session) {
  return all.get(session) ?? {parts: [], marks: {}, position: 0};
}

export function put(session, transcript) {
  all.delete(session);
  all.set(session, transcript);
  save();
}

export function forget(session) {
  all.delete(session);
  save();
}

export function forked(from, to, position) {
  const {parts} = of(from);
  put(to, structuredClone({parts, marks: {}, position}));
}

export function marked(session, mark) {
  const transcript = of(session);
  transcript.marks[mark] = transcript.parts.length;
  put(session, transcript);
}

// Back to a mark; where it was set elsewhere, nothing is known of what the session has absorbed.
export function rewound(session, mark, position) {
  const transcript = of(session);
  const count = transcript.marks[mark] ?? 0;
  const known = mark in transcript.marks;
  transcript.parts = transcript.parts.slice(0, count);
  put(session, {...transcript, position: known ? position : 0});
}
