/** The form of requests. Each section has some of the fields, for the chosen model. */

import { Adapters } from "./adapters.js";
import { OutputFormat, Quality, Scheduler, Sizes, Upscaler } from "./choices.js";
import { byId } from "./dom.js";
import { showExamples } from "./examples.js";
import { clearMistakes, showMistakes } from "./field_errors.js";
import { PlainFields } from "./fields.js";
import { ImageLists, Media } from "./media.js";
import { accepts, isDemo, ModelMenu } from "./models.js";
import { ObjectFields } from "./objects.js";

/**
 * @typedef {object} Section Part of the form.
 * @property {(model: import("./models.js").Model) => void} show Show what the model accepts, with
 *   its defaults.
 * @property {() => object} read Return the section's fields of a request.
 * @property {(body: object) => import("./field_errors.js").Mistake[]} [check] Find errors of a request.
 * @property {(request: object) => void} [use] Fill in the values of a request.
 */

/** Form of requests. */
export class Form {
  #menu = new ModelMenu(() => this.#show());
  #fields;
  #media = new Media(() => this.#fields.showTaskDefaults(this.#media.task));
  #lists;
  #adapters;
  /** @type {Section[]} */
  #sections;
  #onSubmit;

  /**
   * @param {Record<string, import("./schema.js").Field>} fields All fields of requests.
   * @param {import("./api.js").Api} api
   * @param {(body: object) => void} onSubmit Called with each valid request.
   */
  constructor(fields, api, onSubmit) {
    this.#onSubmit = onSubmit;
    this.#lists = new ImageLists(fields);
    this.#fields = new PlainFields(fields); // makes inputs of fields that have none yet
    this.#adapters = new Adapters(api);
    this.#sections = [
      this.#fields,
      new ObjectFields(fields),
      new Sizes(this.#fields),
      new OutputFormat(),
      new Quality(),
      new Upscaler(),
      new Scheduler(),
      this.#adapters,
      this.#media,
      this.#lists,
    ];
    this.#connect();
  }

  #connect() {
    const form = byId("composer");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      if (!document.querySelector("dialog[open]")) form.requestSubmit();
    });
    byId("swap").addEventListener("click", swapSides);
    byId("dice").addEventListener("click", drawSeed);
  }

  get areModelsReady() {
    return this.#menu.areReady;
  }

  get hasModel() {
    return this.#menu.chosen !== undefined;
  }

  /** @param {string} model */
  serves(model) {
    return this.#menu.serves(model);
  }

  /**
   * Show the models of now and their adapters.
   *
   * @param {import("./models.js").Model[]} models
   */
  async update(models) {
    this.#menu.update(models);
    if (models.some((model) => model.max_lora_rank)) await this.#adapters.load();
  }

  #show() {
    const model = this.#menu.chosen;
    if (!model) return;
    for (const box of document.querySelectorAll("[data-field]")) {
      box.hidden = !accepts(model, box.dataset.field);
    }
    byId("frame-fields").hidden = !accepts(model, "num_frames");
    byId("prompt-hint").hidden = !isDemo(model);
    showExamples(model, (...example) => this.#useExample(...example));
    for (const section of this.#sections) section.show(model);
    this.#fields.showTaskDefaults(this.#media.task);
  }

  #useExample(prompt, field, url) {
    byId("prompt").value = prompt;
    const fileName = "drawing";
    if (field === "control") this.#lists.set(field, url, fileName, { preprocess: "canny" });
    else if (field) this.#media.set(field, url, fileName);
    byId("prompt").focus();
  }

  #submit() {
    if (!this.hasModel) return;
    clearMistakes();
    const body = this.#read();
    const mistakes = this.#check(body);
    if (mistakes.length) showMistakes(mistakes);
    else this.#onSubmit(body);
  }

  #read() {
    const body = { model: this.#menu.chosen.name, prompt: byId("prompt").value };
    return Object.assign(body, ...this.#sections.map((section) => section.read()));
  }

  #check(body) {
    const isBlank = !body.prompt.trim();
    const blank = isBlank ? [{ field: "prompt", message: "Write what you want to see." }] : [];
    return blank.concat(...this.#sections.map((section) => section.check?.(body) ?? []));
  }

  /**
   * Fill in the settings of a request. The images and videos stay.
   *
   * @param {object} request
   */
  use(request) {
    if (!this.hasModel) return;
    this.#menu.choose(request.model);
    byId("prompt").value = request.prompt ?? "";
    for (const section of this.#sections) section.use?.(request);
    clearMistakes();
    byId("prompt").focus();
  }

  /**
   * Fill in the settings of a request for one image or video, and remove images and videos.
   *
   * @param {object} request
   */
  replace(request) {
    this.#media.clear();
    this.#lists.clear();
    this.use({ num_images: 1, ...request });
  }
}

function swapSides() {
  const { value: width } = byId("width");
  byId("width").value = byId("height").value;
  byId("height").value = width;
}

function drawSeed() {
  byId("seed").value = crypto.getRandomValues(new Uint32Array(1))[0];
}
