// What the page asks of the server. Nothing leaves the page's own origin.

// The server has refused a request, with its sentence.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The server could not be reached, or went away in the middle of an answer.
export class Unreachable extends Error {}

// The key of requests. It lives as long as the tab, and is never in an address. What was asked with
// another key ends as if the user had stopped it: its answer is not for who has this one.
const KEY = 'recurve.key';
let ofThisKey = new AbortController();
function changeKey(change) {
  change();
  ofThisKey.abort();
  ofThisKey = new AbortController();
}
export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const useKey = (key) => changeKey(() => sessionStorage.setItem(KEY, key));
export const forgetKey = () => changeKey(() => sessionStorage.removeItem(KEY));

// Whether an error says that the user, or another key, has ended the request.
export const isStop = (error) => error.name === 'AbortError';

async function send(method, path, body, stop) {
  const signals = stop ? [stop, ofThisKey.signal] : [ofThisKey.signal];
  const options = {method, signal: AbortSignal.any(signals), cache: 'no-store', headers: {}};
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers['Content-Type'] = 'application/json';
  }
  if (hasKey()) options.headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (isStop(error)) throw error;
    throw new Unreachable('the server cannot be reached');
  }
  if (response.ok) return response;
  const answer = await response.json().catch((error) => {
    if (isStop(error)) throw error;
    return {};
  });
  throw new Refused(response.status, answer.error?.message ?? `the server answered with status ${response.status}`);
}

async function ask(method, path, body) {
  return (await send(method, path, body)).json();
}

const at = (session) => `/v1/sessions/${encodeURIComponent(session)}`;

export const load = () => ask('GET', '/v1/load');
export const models = () => ask('GET', '/v1/models');
// Fails with the server's sentence where the model has no usable chat template.
export const tryChat = () => ask('POST', '/tokenize', {messages: [{role: 'user', content: 'a'}]});

// All sessions, a page of them after the other.
export async function sessions() {
  const all = [];
  for (let after = '', more = true; more;) {
    const page = await ask('GET', `/v1/sessions?limit=1000&after=${encodeURIComponent(after)}`);
    all.push(...page.data);
    more = page.has_more && page.data.length > 0;
    after = page.data.at(-1)?.id;
  }
  return all;
}

export const session = (name) => ask('GET', at(name));
// The server can rewind a session by so many tokens: 128 KiB of its memory for each session and mark.
const REWIND_TOKENS = 32768;
export const open = (name) =>
  ask('POST', '/v1/sessions', {rewind_tokens: REWIND_TOKENS, ...(name && {session: name})});
export const close = (name) => ask('DELETE', at(name));
export const fork = (name, to) => ask('POST', `${at(name)}/fork`, to ? {session: to} : {});
export const mark = (name, mark) => ask('POST', `${at(name)}/marks`, {mark});
export const unmark = (name, mark) =>
  ask('DELETE', `${at(name)}/marks/${encodeURIComponent(mark)}`);
// to: {mark} or {position}
export const rewind = (name, to) => ask('POST', `${at(name)}/rewind`, to);

// The events of a stream of the dialect, as objects, until its [DONE].
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = '';
  for (;;) {
    const {value, done} = await reader.read().catch((error) => {
      if (isStop(error)) throw error;
      throw new Unreachable('the server went away in the middle of the answer');
    });
    if (done) throw new Unreachable('the answer broke off');
    unread += value;
    for (let end; (end = unread.indexOf('\n\n')) >= 0; unread = unread.slice(end + 2)) {
      const data = unread.slice(0, end).replace(/^data: ?/, '');
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new Refused(event.error.code ?? 500, event.error.message);
      yield event;
    }
  }
}

// Tokens are named by their text; those that are parts of a character by their bytes, "bytes:\xe2".
const bytesOf = (name) =>
  name.startsWith('bytes:')
    ? Uint8Array.from(name.slice(6).match(/[0-9a-f]{2}/gi) ?? [], (hex) => parseInt(hex, 16))
    : null;

// Gives each token the text that it completes.
class TokenTexts {
  #decoder = new TextDecoder();

  of(name) {
    const bytes = bytesOf(name);
    return bytes ? this.#decoder.decode(bytes, {stream: true}) : this.#decoder.decode() + name;
  }
}

const shown = (name) => (bytesOf(name) ? name.slice(6) : name);

// One form of both dialects' probabilities: [{name, logprob, top: [[name, logprob]]}].
function tokensOf(choice) {
  const said = choice.logprobs;
  if (!said) return [];
  if (said.content) {
    return said.content.map((token) => ({
      name: token.token,
      logprob: token.logprob,
      top: (token.top_logprobs ?? []).map((one) => [shown(one.token), one.logprob]),
    }));
  }
  return said.tokens.map((name, i) => ({
    name,
    logprob: said.token_logprobs[i],
    top: Object.entries(said.top_logprobs?.[i] ?? {}).map(([other, logprob]) => [shown(other), logprob]),
  }));
}

// Generates in a session, from {messages} of a chat or a {prompt}, with the fields of `sampling`, and
// calls take({text, reasoning, tokens, finish}) for what comes: tokens are {text, name, p,
// top: [[name, p]]}, the likeliest first; finish says why the answer has ended.
export async function generate(name, {messages, prompt}, {alternatives, ...sampling}, signal, take) {
  const body = {...sampling, session: name, stream: true};
  if (messages) Object.assign(body, {messages, logprobs: true, top_logprobs: alternatives});
  else Object.assign(body, {prompt, logprobs: alternatives});
  const path = messages ? '/v1/chat/completions' : '/v1/completions';
  const texts = new TokenTexts();
  for await (const event of events(await send('POST', path, body, signal))) {
    const choice = event.choices?.[0];
    if (!choice) continue;
    const tokens = tokensOf(choice).map((token) => ({
      text: texts.of(token.name),
      name: shown(token.name),
      p: Math.exp(token.logprob),
      top: token.top.map(([other, logprob]) => [other, Math.exp(logprob)]).sort((a, b) => b[1] - a[1]),
    }));
    take({
      text: choice.text ?? choice.delta?.content ?? '',
      reasoning: choice.delta?.reasoning_content ?? '',
      tokens,
      finish: choice.finish_reason,
    });
  }
}
