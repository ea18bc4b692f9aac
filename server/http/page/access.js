// The key of a server that needs one: a bar with a field while the server refuses requests without it.

import * as api from '/page/api.js';

export class Access {
  #refused = false;

  // changed(): there is another key, or none.
  constructor(bar, forget, changed) {
    this.bar = bar;
    this.forget = forget;
    this.field = bar.querySelector('input');
    bar.addEventListener('submit', (event) => {
      event.preventDefault();
      api.useKey(this.field.value.trim());
      this.field.value = '';
      this.#set(false);
      changed();
    });
    forget.addEventListener('click', () => {
      api.forgetKey();
      this.#set(false);
      changed();
    });
    this.#set(false);
  }

  // Whether requests need another key, so that they are not repeated.
  get refused() {
    return this.#refused;
  }

  // The server has refused a request without a key, or its key.
  needed() {
    if (this.#refused) return;
    this.bar.querySelector('p').textContent = api.hasKey() ? 'The server does not know this key, or it has expired.' : '';
    this.#set(true);
    this.field.focus();
  }

  #set(refused) {
    this.#refused = refused;
    this.bar.hidden = !refused;
    this.forget.hidden = refused || !api.hasKey();
  }
}
