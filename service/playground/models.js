/** Models that the server serves, and the menu in which one is chosen. */

import { byId, setOptions, showServerState } from "./dom.js";

/**
 * @typedef {object} Model Entry of `GET /v1/models`.
 * @property {string} name
 * @property {boolean} ready
 * @property {string[]} pools
 * @property {string[]} tasks
 * @property {string[]} fields Fields that its requests may have.
 * @property {string[]} needed Fields that its requests must have.
 * @property {string | null} strength_needs Field without which `strength` has no effect.
 * @property {Record<string, unknown>} defaults
 * @property {Record<string, Record<string, unknown>>} task_defaults
 * @property {Record<string, number>} limits
 */

/** Fields of every model, which its entry does not list. */
const COMMON_FIELDS = ["model", "prompt", "output", "priority", "deadline_s", "stop_at_step"];

/**
 * Return whether requests to a model may have a field.
 *
 * @param {Model} model
 * @param {string} field
 */
export const accepts = (model, field) =>
  COMMON_FIELDS.includes(field) || model.fields.includes(field);

/**
 * Return whether a model makes videos.
 *
 * @param {Model} model
 */
export const makesVideos = (model) => model.tasks.some((task) => task.endsWith("-to-video"));

/**
 * Return whether a model was trained for the demo, on shapes and colours only.
 *
 * @param {Model} model
 */
export const isDemo = (model) => model.name.endsWith("-demo");

/** Menu of the models. Shows the state of the chosen model in the page's header. */
export class ModelMenu {
  #select = byId("model");
  /** @type {Model[]} */
  #models = [];
  #onChange;

  /** @param {() => void} onChange Called when another model is chosen. */
  constructor(onChange) {
    this.#onChange = onChange;
    this.#select.addEventListener("change", () => {
      onChange();
      this.#showState();
    });
  }

  /** @returns {Model | undefined} */
  get chosen() {
    return this.#models.find(({ name }) => name === this.#select.value);
  }

  get areReady() {
    return this.#models.length > 0 && this.#models.every(({ ready }) => ready);
  }

  /** @param {Model[]} models The models of now. */
  update(models) {
    const before = this.#select.value;
    this.#models = models;
    this.#showNames(before);
    if (this.#select.value !== before) this.#onChange();
    byId("generate").disabled = !models.length;
    this.#showState();
  }

  #showNames(chosen) {
    const names = this.#models.map(({ name }) => name);
    const shown = [...this.#select.options].map(({ value }) => value);
    if (names.join("\n") === shown.join("\n")) return; // an open menu stays open
    setOptions(this.#select, names);
    const first = this.#models.find(({ ready }) => ready) ?? this.#models[0];
    if (first) this.#select.value = names.includes(chosen) ? chosen : first.name;
  }

  #showState() {
    const model = this.chosen;
    if (!model) showServerState("waiting", "no model yet");
    else if (model.ready) showServerState("ready", "ready");
    else showServerState("waiting", model.pools.length ? "warming up" : "no pool yet");
  }

  /**
   * Choose a model if the server serves it; returns whether it does.
   *
   * @param {string} name
   */
  choose(name) {
    if (!this.serves(name)) return false;
    this.#select.value = name;
    this.#onChange();
    return true;
  }

  /** @param {string} name */
  serves(name) {
    return this.#models.some((model) => model.name === name);
  }
}
