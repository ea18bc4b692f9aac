// Tokens as text, coloured by how likely they were, and the alternatives at each.

// The class of a probability: p9 is as good as certain, p0 a surprise. What a model says lies mostly
// between a few percent and a half, so that is where most of the steps are.
const STEPS = [0.005, 0.015, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.85];
const shade = (p) => `p${STEPS.filter((step) => p >= step).length}`;

const percent = (p) => (p >= 0.0995 ? `${(100 * p).toFixed(0)} %` : `${(100 * p).toPrecision(2)} %`);

// Spaces and ends of lines can be seen where a token is shown alone.
const visible = (name) => name.replaceAll(' ', '␣').replaceAll('\n', '↵') || '∅';

export function spanOf(token) {
  const span = document.createElement('span');
  span.className = `token ${shade(token.p)}`;
  span.textContent = token.text;
  span.token = token;
  return span;
}

// Shows `token` and what else might have stood there in `panel`; null: nothing.
export function showAlternatives(panel, token) {
  panel.replaceChildren();
  panel.hidden = !token;
  if (!token) return;
  const list = document.createElement('ol');
  const rows = token.top.some(([name]) => name === token.name)
    ? token.top
    : [...token.top, [token.name, token.p]];
  for (const [name, p] of rows) {
    const row = document.createElement('li');
    const text = document.createElement('code');
    text.textContent = visible(name);
    const bar = document.createElement('meter');
    bar.max = 1;
    bar.value = p;
    const number = document.createElement('span');
    number.textContent = percent(p);
    row.append(text, bar, number);
    if (name === token.name) row.setAttribute('aria-current', 'true');
    list.append(row);
  }
  panel.append(list);
}

// Lets one token of `transcript` be chosen, by a click or with the arrow keys, and shows its
// alternatives in `panel`.
export function makeChoosable(transcript, panel) {
  let chosen = null;
  const choose = (span) => {
    chosen?.classList.remove('chosen');
    chosen = span;
    chosen?.classList.add('chosen');
    chosen?.scrollIntoView({block: 'nearest'});
    showAlternatives(panel, span?.token ?? null);
  };
  transcript.addEventListener('click', (event) => choose(event.target.closest('.token')));
  transcript.addEventListener('keydown', (event) => {
    const steps = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity};
    if (event.key === 'Escape') return choose(null);
    if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
    const spans = [...transcript.querySelectorAll('.token')];
    if (spans.length === 0) return;
    event.preventDefault();
    const from = chosen ? spans.indexOf(chosen) : spans.length;
    choose(spans[Math.min(spans.length - 1, Math.max(0, from + steps[event.key]))]);
  });
  return {clear: () => choose(null)};
}
