// The server's load, live.

import {bytes} from '/page/pane.js';

const numbers = new Intl.NumberFormat('en', {maximumFractionDigits: 1});
const POINTS = 60;

export class Load {
  #last = null;
  #rates = [];

  constructor(list, picture) {
    this.list = list;
    this.line = picture.querySelector('polyline');
  }

  // Takes what the server says of itself, at a time in seconds.
  take(load, seconds) {
    const made = load.generated_tokens + load.prompt_tokens;
    if (this.#last) {
      const rate = Math.max(0, made - this.#last.made) / Math.max(0.1, seconds - this.#last.seconds);
      this.#rates = [...this.#rates, rate].slice(-POINTS);
    }
    this.#last = {made, seconds};
    this.#facts(load);
    this.#draw();
  }

  // The server cannot be reached.
  lost() {
    this.#last = null;
  }

  #facts(load) {
    const {slots} = load;
    const grows = load.state_bytes_per_token > 0 ? ` + ${bytes(load.state_bytes_per_token)} a token` : '';
    const facts = [
      ['Slots', `${slots.running} running, ${slots.idle_session} idle, ${slots.free} free`],
      ['Waiting', `${load.requests_waiting}`],
      ['Tokens/s', numbers.format(this.#rates.at(-1) ?? 0)],
      ['State', `${bytes(load.state_bytes)} a session${grows}`],
    ];
    if (this.list.children.length === 0) {
      for (const [name] of facts) {
        const pair = document.createElement('div');
        const term = document.createElement('dt');
        term.textContent = name;
        pair.append(term, document.createElement('dd'));
        this.list.append(pair);
      }
    }
    facts.forEach(([, value], i) => {
      this.list.children[i].lastElementChild.textContent = value;
    });
  }

  #draw() {
    const most = Math.max(1, ...this.#rates);
    const first = POINTS - this.#rates.length;
    this.line.setAttribute('points', this.#rates
      .map((rate, i) => `${((first + i) * 120) / (POINTS - 1)},${23 - (22 * rate) / most}`)
      .join(' '));
  }
}
