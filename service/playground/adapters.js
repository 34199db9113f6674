/** Section of the form with LoRA adapters: tiles to choose from, and the scales of the chosen. */

import { button, byId, element, icon } from "./dom.js";
import { isShown } from "./inputs.js";

/** Number of adapters from which on a search field is shown. */
const SEARCH_FROM = 9;

/**
 * @typedef {object} Adapter Entry of `GET /v1/loras`.
 * @property {string} name
 * @property {string} model
 * @property {string} trigger Words that prompts should contain; may be empty.
 * @property {number} rank
 * @property {number} vectors Of an embedding, which prompts name; 0: an adapter.
 * @property {string | null} preview URL of an example image.
 * @property {boolean} ready
 */

/** Picker of adapters. */
export class Adapters {
  #api;
  #model;
  /** @type {Adapter[]} Adapters of all models. */
  #adapters = [];
  /** @type {Map<string, number | object[]>} Chosen adapters: a scale, or intervals of steps. */
  #scales = new Map();

  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.#api = api;
    byId("lora-filter").addEventListener("input", () => this.#refresh());
  }

  /** Request the list of adapters, and show it if it has changed. */
  async load() {
    const { data } = await this.#api.getJson("/v1/loras");
    if (JSON.stringify(data) === JSON.stringify(this.#adapters)) return;
    this.#adapters = data;
    this.#refresh();
  }

  /** @param {import("./models.js").Model} model */
  show(model) {
    this.#model = model;
    this.#refresh();
  }

  read() {
    if (!this.#scales.size || !isShown("loras")) return {};
    return { loras: [...this.#scales].map(([name, scale]) => ({ name, scale })) };
  }

  check({ loras = [] }) {
    const isMissing = loras.some(({ scale }) => Number.isNaN(scale));
    return isMissing ? [{ field: "loras", message: "A scale is a number." }] : [];
  }

  use({ loras }) {
    this.#scales = new Map((loras ?? []).map(({ name, scale }) => [name, scale]));
    this.#refresh();
  }

  get #usable() {
    const model = this.#model.base ?? this.#model.name;
    return this.#adapters.filter((adapter) => adapter.model === model && adapter.ready);
  }

  #refresh() {
    const all = this.#usable;
    const usable = all.filter(({ vectors }) => !vectors);
    const embeddings = all.filter((entry) => entry.vectors && matchesSearch(entry));
    const names = usable.map(({ name }) => name);
    for (const name of this.#scales.keys()) if (!names.includes(name)) this.#scales.delete(name);
    byId("lora-filter").hidden = all.length < SEARCH_FROM;
    byId("loras-hint").textContent = all.length ? "" : "None yet. POST /v1/loras uploads one.";
    const shown = usable.filter((adapter) => this.#isChosen(adapter) || matchesSearch(adapter));
    const tiles = shown.map((adapter) => this.#tile(adapter));
    const words = embeddings.map((embedding) => this.#embeddingTile(embedding));
    byId("loras").replaceChildren(...tiles, ...words);
    const chosen = usable.filter((adapter) => this.#isChosen(adapter));
    byId("chosen-loras").replaceChildren(...chosen.map((...row) => this.#chosenRow(...row)));
  }

  #isChosen({ name }) {
    return this.#scales.has(name);
  }

  #tile(adapter) {
    const { name, trigger, rank } = adapter;
    return element(
      "button",
      {
        class: "tile",
        type: "button",
        "data-lora": name,
        "aria-pressed": String(this.#isChosen(adapter)),
        title: `${name}: rank ${rank}${trigger && `, trigger: ${trigger}`}`,
        onclick: () => this.#toggle(name),
      },
      this.#preview(adapter),
      element("span", {}, name),
    );
  }

  #embeddingTile(embedding) {
    const { name } = embedding;
    return element(
      "button",
      {
        class: "tile",
        type: "button",
        "data-embedding": name,
        title: `${name}: an embedding. Add its name to the prompt.`,
        onclick: () => addTrigger(name),
      },
      this.#preview(embedding),
      element("span", {}, name),
    );
  }

  #preview({ preview }) {
    if (!preview) return icon("adapter");
    return this.#api.link(element("img", { alt: "", width: 88, height: 88 }), "src", preview);
  }

  #toggle(name) {
    if (!this.#scales.delete(name)) this.#scales.set(name, 1);
    this.#refresh();
    byId("loras")
      .querySelector(`[data-lora="${CSS.escape(name)}"]`)
      ?.focus();
  }

  #chosenRow({ name, trigger }, index) {
    const scale = this.#scales.get(name);
    const row = Array.isArray(scale) ? intervals(name, scale) : this.#slider(name, scale, index);
    const title = "Add the trigger to the prompt";
    const add = trigger ? button(`+ ${trigger}`, () => addTrigger(trigger), { title }) : null;
    return element("div", {}, row, add);
  }

  #slider(name, value, index) {
    const id = `lora-scale-${index}`;
    const label = `Scale of ${name}`;
    const oninput = ({ target }) => this.#scales.set(name, target.valueAsNumber);
    const range = { type: "range", min: -1, max: 2, step: 0.05, "aria-label": `${label}, slider` };
    const number = { type: "number", min: -100, max: 100, step: "any", "aria-label": label };
    return element(
      "div",
      { class: "slider" },
      element("label", { for: id }, name),
      element("input", { "data-for": id, ...range, value, oninput }),
      element("input", { id, ...number, inputmode: "decimal", value, oninput }),
    );
  }
}

function matchesSearch({ name, trigger }) {
  const text = byId("lora-filter").value.trim().toLowerCase();
  return `${name} ${trigger}`.toLowerCase().includes(text);
}

function intervals(name, scales) {
  const texts = scales.map(({ scale, from, to }) => `${scale} from ${from} to ${to}`);
  return element("p", { class: "hint" }, `${name}: ${texts.join(", ")}`);
}

function addTrigger(trigger) {
  const prompt = byId("prompt");
  const text = prompt.value.trimEnd();
  if (!text.toLowerCase().includes(trigger.toLowerCase())) {
    prompt.value = text ? `${text.replace(/,$/, "")}, ${trigger}` : trigger;
  }
  prompt.focus();
}

/**
 * Describe the adapters of a request in one line.
 *
 * @param {{name: string, scale: number | object[]}[]} [loras]
 */
export function adaptersText(loras = []) {
  const texts = loras.map(({ name, scale }) => {
    if (scale === 1) return name;
    return `${name} ${Array.isArray(scale) ? "by steps" : scale}`;
  });
  return texts.join(", ");
}
