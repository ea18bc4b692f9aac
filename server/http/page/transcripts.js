// What this browser stores of the sessions' texts: the server stores states, not texts. A transcript
// is {parts, marks, position, title, mode}:
//   parts     {who: 'system' | 'user' | 'model', text}; a turn's user and model parts also have
//             `before`, the position of the session before the turn; a model part has {tokens,
//             reasoning, finish, mode} and the seconds to its `first` and last token
//   marks     the number of parts at each mark
//   position  the tokens that the session had absorbed after the last part
//   title     the first words of the first message; absent: the session's name is shown
//   mode      'chat' or 'text', as the last turn was sent

const KEY = 'recurve.transcripts';
const MOST = 100;

let all = new Map();
try {
  all = new Map(JSON.parse(localStorage.getItem(KEY) ?? '[]'));
} catch {
  // What cannot be read is begun anew.
}

// If the storage is full, those that were changed last stay.
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

// hasTitle: its name is not the user's, so that it gets a title.
export function forked(from, to, position, hasTitle) {
  const {parts, mode} = of(from);
  const fork = structuredClone({parts, mode, marks: {}, position});
  if (hasTitle) fork.title = numbered(title(from).replace(/ \(\d+\)$/, ''));
  put(to, fork);
}

// A fork that has been rewound to where it had the first `count` parts.
export function branched(from, to, count, position) {
  const {parts, mode} = of(from);
  put(to, structuredClone({parts: parts.slice(0, count), mode, marks: {}, position, title: ''}));
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

// The name that people see.
export const title = (session) => of(session).title || session;

const WORDS_OF_TITLE = 6;
const MOST_OF_TITLE = 48;

// A title from a message.
export function titled(text) {
  const whole = text.trim().replace(/\s+/g, ' ');
  const cut = whole.split(' ', WORDS_OF_TITLE).join(' ').slice(0, MOST_OF_TITLE);
  return numbered(cut === whole ? whole : `${cut.replace(/[.,;:]$/, '')}…`);
}

// With a number where another session has the same.
function numbered(words) {
  const taken = new Set([...all.values()].map((one) => one.title));
  let unique = words;
  for (let n = 2; words && taken.has(unique); ++n) unique = `${words} (${n})`;
  return unique;
}
