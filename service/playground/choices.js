/** Sections of the form with choices of the model: sizes, formats, presets, upscalers. */

import { byId, choose, element, setOptions } from "./dom.js";
import { choiceInput, collect, fieldBox, inputFor, isShown, readInput } from "./inputs.js";
import { accepts, makesVideos } from "./models.js";

const IMAGE_FORMATS = { png: "PNG", jpeg: "JPEG", webp: "WebP" };
const VIDEO_FORMATS = { mp4: "MP4", webm: "WebM", gif: "GIF", png: "PNG, a file per frame" };

/** Menu of sizes, in place of inputs, for models that serve listed sizes only. */
export class Sizes {
  #fields;

  /** @param {import("./fields.js").PlainFields} fields Section with the inputs of the size. */
  constructor(fields) {
    this.#fields = fields;
    byId("listed").addEventListener("change", () => this.#take());
  }

  show({ sizes }) {
    const listed = sizes?.mode === "listed" ? sizes.listed : [];
    byId("listed-box").hidden = !listed.length;
    byId("sizes-box").hidden = listed.length > 0;
    byId("frames-box").hidden = listed.some((size) => size.num_frames);
    const labels = Object.fromEntries(
      listed.map((size) => [JSON.stringify(size), sizeLabel(size)]),
    );
    setOptions(byId("listed"), Object.keys(labels), labels);
    this.#match();
  }

  use() {
    this.#match();
  }

  read() {
    return {}; // the inputs have the chosen size
  }

  /** Choose the size of the inputs, or the first one if it is not listed. */
  #match() {
    const options = [...byId("listed").options];
    const current = options.find(({ value }) => isCurrent(JSON.parse(value)));
    if (current) byId("listed").value = current.value;
    else this.#take();
  }

  #take() {
    if (byId("listed").value) this.#fields.set(JSON.parse(byId("listed").value));
  }
}

function sizeLabel({ width, height, num_frames: frames }) {
  return `${width} × ${height}${frames ? ` × ${frames} frames` : ""}`;
}

function isCurrent(size) {
  return ["width", "height", "num_frames"].every(
    (name) => !size[name] || size[name] === Number(byId(name).value),
  );
}

/** Format of the files. */
export class OutputFormat {
  show(model) {
    const labels = makesVideos(model) ? VIDEO_FORMATS : IMAGE_FORMATS;
    setOptions(byId("output"), Object.keys(labels), labels);
  }

  read() {
    const { selectedIndex, value } = byId("output");
    return selectedIndex > 0 ? { output: { format: value } } : {};
  }

  use({ output }) {
    if (output?.format) choose(byId("output"), output.format);
  }
}

/** Quality presets. The model's default comes first. */
export class Quality {
  #presets = {};

  constructor() {
    byId("quality").addEventListener("change", () => this.#showHint());
  }

  show(model) {
    this.#presets = model.qualities;
    const presets = Object.keys(this.#presets);
    const usual = model.defaults.quality ?? "exact";
    const names = new Set([usual, ...(model.has_exact ? ["exact"] : []), ...presets]);
    fieldBox("quality").hidden = !presets.length || !accepts(model, "quality");
    setOptions(byId("quality"), [...names]);
    this.#showHint();
  }

  read() {
    return isShown("quality") ? { quality: byId("quality").value } : {};
  }

  use({ quality }) {
    choose(byId("quality"), quality || "exact");
    this.#showHint();
  }

  #showHint() {
    byId("quality-hint").textContent = presetHint(this.#presets[byId("quality").value]);
  }
}

function presetHint(preset) {
  if (!preset) return "The model without approximations.";
  const { psnr_db: psnrDb, about } = preset;
  const measured = psnrDb
    ? ` Median PSNR to the exact image: ${Math.round(psnrDb)} dB. ${about}`
    : "";
  return `Faster, with small differences from the exact image.${measured}`;
}

/** Upscaler of the finished images, and its scale. */
export class Upscaler {
  #upscalers = {};

  constructor() {
    byId("upscale").addEventListener("change", () => this.#showScale());
  }

  show(model) {
    this.#upscalers = model.upscalers;
    const names = Object.keys(this.#upscalers);
    fieldBox("upscale").hidden = !names.length || !accepts(model, "upscale");
    setOptions(byId("upscale"), ["", ...names], { "": "none" });
    this.#showScale();
  }

  read() {
    const name = byId("upscale").value;
    if (!name || !isShown("upscale")) return {};
    const scale = byId("upscale-scale").value;
    return { upscale: scale ? { name, scale: Number(scale) } : { name } };
  }

  use({ upscale }) {
    choose(byId("upscale"), upscale?.name ?? "");
    this.#showScale(upscale?.scale);
  }

  #showScale(scale) {
    const upscaler = this.#upscalers[byId("upscale").value];
    const input = byId("upscale-scale");
    input.hidden = !upscaler;
    if (upscaler) Object.assign(input, { max: upscaler.scale, value: scale ?? upscaler.scale });
  }
}

/** Scheduler, with an input for each option of the chosen one. */
export class Scheduler {
  #schedulers = {};

  constructor() {
    byId("scheduler").addEventListener("change", () => this.#showOptions({}));
  }

  get #options() {
    return this.#schedulers[byId("scheduler").value] ?? {};
  }

  show(model) {
    this.#schedulers = model.schedulers;
    const names = Object.keys(this.#schedulers);
    const short = names.filter((name) => !name.endsWith("Scheduler")); // the rest: diffusers
    const shown = short.length ? short : names;
    fieldBox("scheduler").hidden = !shown.length || !accepts(model, "scheduler");
    setOptions(byId("scheduler"), ["", ...shown], { "": "the model's default" });
    this.#showOptions({});
  }

  read() {
    const name = byId("scheduler").value;
    if (!name || !isShown("scheduler")) return {};
    const options = this.#options;
    const read = (option) => readInput(optionId(option), options[option].kind);
    return { scheduler: { name, ...collect(Object.keys(options), read) } };
  }

  use({ scheduler }) {
    choose(byId("scheduler"), scheduler?.name ?? "");
    this.#showOptions(scheduler ?? {});
  }

  #showOptions(values) {
    const boxes = Object.entries(this.#options).map(([name, option]) =>
      optionBox(name, option, values[name]),
    );
    byId("scheduler-options").replaceChildren(...boxes);
  }
}

const optionId = (name) => `option-${name}`;

function optionBox(name, option, value) {
  const id = optionId(name);
  const input = optionInput(id, option);
  input.value = value ?? "";
  return element("div", {}, element("label", { for: id }, name.replaceAll("_", " ")), input);
}

function optionInput(id, option) {
  const choices = option.kind === "boolean" ? ["true", "false"] : option.choices;
  if (choices?.length) return choiceInput(id, choices);
  return inputFor(id, option, { placeholder: "as it is" });
}
