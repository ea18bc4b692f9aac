// Markdown as elements. The library only splits the text into tokens; elements get their text as
// text, so that nothing in an answer is ever read as HTML.

const MOST_TEXT = 200_000;  // longer texts, and deeper ones, are shown as they are
const MOST_DEPTH = 12;

const element = (tag, ...children) => {
  const node = document.createElement(tag);
  node.append(...children);
  return node;
};

// The library escapes what it takes for text.
const ESCAPES = {amp: '&', lt: '<', gt: '>', quot: '"', '#39': "'", nbsp: '\u00a0'};
const unescaped = (text) => text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name) => ESCAPES[name]);

// Copies also where the browser has no clipboard for pages without TLS.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
}

export function copyButton(label, textOf) {
  const button = element('button', 'Copy');
  button.type = 'button';
  button.className = 'quiet';
  button.setAttribute('aria-label', label);
  button.addEventListener('click', async () => {
    await copy(textOf());
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  });
  return button;
}

function code({text, lang}) {
  const language = element('span', (lang ?? '').split(/\s/)[0]);
  const head = element('div', language, copyButton('Copy code', () => text));
  const node = element('div', head, element('pre', element('code', text)));
  node.className = 'code';
  return node;
}

function link({href}, children) {
  const target = unescaped(href ?? '');
  if (!/^(https?|mailto):/i.test(target)) return element('span', ...children);
  const node = element('a', ...children);
  Object.assign(node, {href: target, target: '_blank', rel: 'noopener noreferrer', title: target});
  return node;
}

function table({header, rows, align}, depth) {
  const row = (tag, cells) => element('tr', ...cells.map((cell, i) => {
    const node = element(tag, ...inline(cell.tokens, depth));
    if (align[i]) node.className = `align-${align[i]}`;
    return node;
  }));
  const node = element('div', element('table', element('thead', row('th', header)),
    element('tbody', ...rows.map((cells) => row('td', cells)))));
  node.className = 'wide';
  return node;
}

function list({ordered, start, items}, depth) {
  const node = element(ordered ? 'ol' : 'ul', ...items.map((item) => {
    const children = blocks(item.tokens, depth);
    return element('li', ...(item.task ? [item.checked ? '☑ ' : '☐ '] : []), ...children);
  }));
  if (ordered && start !== 1) node.start = start;
  return node;
}

const INLINE = {
  strong: (token, inner) => element('strong', ...inner),
  em: (token, inner) => element('em', ...inner),
  del: (token, inner) => element('del', ...inner),
  link,
  image: (token) => link(token, [unescaped(token.text) || token.href]),
  codespan: (token) => element('code', unescaped(token.text)),
  br: () => element('br'),
  escape: (token) => unescaped(token.text),
  text: (token, inner) => (token.tokens ? element('span', ...inner) : unescaped(token.text)),
};

function inline(tokens, depth) {
  if (depth > MOST_DEPTH) return (tokens ?? []).map((token) => token.raw);
  return (tokens ?? []).map((token) =>
    INLINE[token.type]?.(token, token.tokens ? inline(token.tokens, depth + 1) : []) ?? token.raw);
}

const BLOCK = {
  code,
  table,
  list,
  heading: (token, depth) => element(`h${Math.min(6, token.depth + 2)}`, ...inline(token.tokens, depth)),
  hr: () => element('hr'),
  blockquote: (token, depth) => element('blockquote', ...blocks(token.tokens, depth)),
  paragraph: (token, depth) => element('p', ...inline(token.tokens, depth)),
  text: (token, depth) => element('span', ...(token.tokens ? inline(token.tokens, depth) : [unescaped(token.text)])),
};

// One node for a token of the text itself or of a block.
function block(token, depth) {
  const draw = depth <= MOST_DEPTH && BLOCK[token.type];
  return draw ? draw(token, depth + 1) : plain(token.raw);
}

const visible = (token) => token.type !== 'space' && token.type !== 'def';

function blocks(tokens, depth) {
  return tokens.filter(visible).map((token) => block(token, depth));
}

function plain(text) {
  const node = element('p', text);
  node.className = 'plain-text';
  return node;
}

// The library's time for emphasis is the marks of a paragraph times its length: 10 million take a second.
const MOST_WORK = 10_000_000;
const work = (text) => text.split(/\n\s*\n/).reduce(
  (sum, part) => sum + part.length * (part.length - part.replace(/[*_]/g, '').length), 0);

// A text that the library cannot read in time is one token.
function split(text) {
  const whole = [{type: 'whole', raw: text}];
  if (text.length > MOST_TEXT || /^(?:[ \t]*[>*+-]){40}/m.test(text) || work(text) > MOST_WORK) return whole;
  try {
    return globalThis.marked.lexer(text).filter(visible);
  } catch {
    return whole;
  }
}

const drawn = new WeakMap();

// Shows a text in `container`; what is there of it already, while it grows, stays.
export function showMarkdown(container, text) {
  const tokens = split(text);
  const old = drawn.get(container) ?? [];
  let same = 0;
  while (same < old.length && same < tokens.length && old[same] === tokens[same].raw) ++same;
  if (container.childNodes.length < same) same = 0;  // it has been emptied
  while (container.childNodes.length > same) container.lastChild.remove();
  container.append(...tokens.slice(same).map((token) => block(token, 0)));
  drawn.set(container, tokens.map((token) => token.raw));
}
