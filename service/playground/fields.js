/** Fields with one input each: numbers, texts, lists of numbers, choices. */

import { byId } from "./dom.js";
import { collect, fieldBox, generatedBox, isShown, readInput } from "./inputs.js";
import { accepts, makesVideos } from "./models.js";
import { isNumber } from "./schema.js";

/** Values where a model has no default. */
const FALLBACKS = { num_images: 1, strength: 0.6 };
const GENERATED_KINDS = ["integer", "number", "string", "array", "choice"];
const MIN_SLIDER_STEPS = 50;

/** Section of the form with all fields of one input, as far as no other section has them. */
export class PlainFields {
  /** @type {Record<string, import("./schema.js").Field>} */
  #fields;
  #generated;
  #model;

  /** @param {Record<string, import("./schema.js").Field>} fields All fields of requests. */
  constructor(fields) {
    this.#generated = Object.keys(fields).filter(
      (name) => !fieldBox(name) && GENERATED_KINDS.includes(fields[name].kind),
    );
    byId("further").append(...this.#generated.map((name) => generatedBox(name, fields[name])));
    const names = Object.keys(fields).filter(
      (name) => this.#generated.includes(name) || (isNumber(fields[name]) && fieldBox(name)),
    );
    this.#fields = collect([...names, "negative_prompt", "seed"], (name) => fields[name]);
    this.#fields.seed = { ...fields.seed, kind: "seed" };
    connectSliders(byId("composer"));
    byId("negative_prompt").addEventListener("input", () => this.#showTrueCfg());
  }

  get #names() {
    return Object.keys(this.#fields);
  }

  get #numbers() {
    return this.#names.filter((name) => isNumber(this.#fields[name]));
  }

  /** @param {import("./models.js").Model} model */
  show(model) {
    this.#model = model;
    showLimits(model);
    const usual = (name) => model.defaults[name] ?? FALLBACKS[name] ?? "";
    this.set({ ...collect(this.#generated, () => ""), ...collect(this.#numbers, usual) });
  }

  /**
   * Fill in the defaults of a task, in all fields for which the model has defaults by task.
   *
   * @param {string} task
   */
  showTaskDefaults(task) {
    const { defaults, task_defaults: byTask } = this.#model;
    const values = { ...FALLBACKS, ...defaults, ...byTask[task] };
    const names = ["strength", ...Object.values(byTask).flatMap(Object.keys)];
    this.set(collect(names, (name) => values[name]));
  }

  /**
   * Fill in values. A field without a value keeps its own.
   *
   * @param {Record<string, unknown>} values
   */
  set(values) {
    for (const name of this.#names) {
      if (values[name] != null) byId(name).value = [values[name]].flat().join(", ");
    }
    for (const slider of sliders()) slider.value = byId(slider.dataset.for).value;
    this.#showTrueCfg();
  }

  read() {
    const shown = this.#names.filter(isShown);
    return collect(shown, (name) => readInput(name, this.#fields[name].kind));
  }

  check(body) {
    return this.#names
      .filter(isShown)
      .map((field) => ({ field, message: mistake(field, this.#fields[field], body[field]) }))
      .filter(({ message }) => message);
  }

  /** Fill in the values of a request. Numbers that it lacks keep the model's defaults. */
  use(request) {
    const empty = (name) => (isNumber(this.#fields[name]) ? undefined : "");
    this.set(collect(this.#names, (name) => request[name] ?? empty(name)));
  }

  /** True CFG has an effect with a negative prompt only. */
  #showTrueCfg() {
    if (!this.#model) return;
    const isNegative = byId("negative_prompt").value.trim() !== "";
    fieldBox("true_cfg_scale").hidden = !isNegative || !accepts(this.#model, "true_cfg_scale");
  }
}

function mistake(name, { kind }, value) {
  if (byId(name).validity.badInput) return "This is not a number.";
  if (value === undefined) return "";
  if (kind === "integer" && !Number.isInteger(value)) return "Enter a whole number.";
  if (kind === "array" && value.some(Number.isNaN)) return "Numbers, separated by commas.";
  if (kind === "seed" && !/^\d+$/.test(value)) {
    return "A seed is a whole number, 0 or more; an empty field means a random one.";
  }
  return "";
}

function showLimits(model) {
  const { limits, defaults } = model;
  const side = { min: limits.min_side_px, max: limits.max_side_px, step: limits.size_multiple_px };
  Object.assign(byId("width"), side);
  Object.assign(byId("height"), side);
  byId("size-hint").textContent = `${side.min} to ${side.max} px, in steps of ${side.step}`;
  byId("num_inference_steps").max = limits.max_steps;
  const sliderSteps = Math.max(MIN_SLIDER_STEPS, 2 * (defaults.num_inference_steps ?? 0));
  sliderOf("num_inference_steps").max = Math.min(limits.max_steps, sliderSteps);
  byId("num_images").max = limits.max_images;
  byId("num-images-label").textContent = makesVideos(model) ? "Videos" : "Images";
  showFrameLimits(limits);
}

function showFrameLimits({ min_frames: min, max_frames: max, frames_multiple: step }) {
  Object.assign(byId("num_frames"), { min, max, step });
  byId("frames-hint").textContent =
    step > 1 ? `${min} more than a multiple of ${step}, at most ${max}` : `at most ${max}`;
}

const sliders = () => document.querySelectorAll("input[type=range][data-for]");
const sliderOf = (id) => document.querySelector(`[data-for="${CSS.escape(id)}"]`);

/** Keep each slider and its number equal, also those that are added later. */
function connectSliders(form) {
  form.addEventListener("input", ({ target }) => {
    const other = target.dataset.for ? byId(target.dataset.for) : sliderOf(target.id);
    if (other) other.value = target.value;
  });
}
