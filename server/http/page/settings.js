// What the user has set: the fields of the form, and chat or text. They are stored in the browser.

const STORED = 'recurve.controls';
const MODE = 'recurve.mode';
const TEXT_TOKENS = 200;  // of a text without a limit, which rarely ends by itself

const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'max_tokens', 'seed'];

export class Settings {
  // form: its fields are named like those of a request. changed(): the user has changed one.
  constructor(form, changed) {
    this.form = form;
    this.changed = changed;
    form.addEventListener('input', () => this.#store());
    form.addEventListener('submit', (event) => event.preventDefault());
    form.addEventListener('reset', () => setTimeout(() => this.#store()));
    this.#restore();
  }

  // The fields of a request; those that are empty have the server's defaults.
  request(chat) {
    const field = (name) => this.form.elements[name].value;
    const fields = {alternatives: Number(field('alternatives'))};
    for (const name of NUMBERS) {
      if (field(name) !== '') fields[name] = Number(field(name));
    }
    if (!chat) fields.max_tokens ??= TEXT_TOKENS;
    if (field('stop') !== '') fields.stop = field('stop').replaceAll('\\n', '\n');
    return fields;
  }

  get colours() {
    return this.form.elements.colours.checked;
  }

  // What a new session starts with.
  get mode() {
    return localStorage.getItem(MODE) ?? 'chat';
  }

  set mode(mode) {
    localStorage.setItem(MODE, mode);
  }

  #fields() {
    return [...this.form.elements].filter((input) => input.name);
  }

  #store() {
    const values = {};
    for (const input of this.#fields()) {
      values[input.name] = input.type === 'checkbox' ? input.checked : input.value;
    }
    localStorage.setItem(STORED, JSON.stringify(values));
    this.changed(this);
  }

  #restore() {
    try {
      const values = JSON.parse(localStorage.getItem(STORED) ?? '{}');
      for (const input of this.#fields()) {
        if (!(input.name in values)) continue;
        if (input.type === 'checkbox') input.checked = values[input.name];
        else input.value = values[input.name];
      }
    } catch {
      // What cannot be read is left as the page has it.
    }
    this.changed(this);
  }
}
