/** Sections of the form with the images and videos of a request. */

import { button, byId, element, icon } from "./dom.js";
import { choiceInput, collect, fieldBox, inputFor, isShown, optionalLabel } from "./inputs.js";
import { MaskPainter } from "./mask.js";
import { accepts, makesVideos } from "./models.js";

/** Labels of the fields with one file, in the order of the page. */
const LABELS = {
  image: "Start from an image",
  mask_image: "Mask: white areas are redrawn",
  last_image: "End with an image",
  control_image: "Image to follow: edges or depths",
  control_video: "Video to follow",
  pose_video: "Video of poses",
  face_video: "Video of the face",
  background_video: "Video to put the character into",
  mask_video: "Mask of that video: white areas are redrawn",
};
const LIST_LABELS = {
  reference_images: "Further images",
  control: "Images to follow",
  image_prompts: "Images as prompts",
};

/** Fields of one file or several. Their contents are not stored with a finished job. */
export const UPLOADED_FIELDS = [...Object.keys(LABELS), ...Object.keys(LIST_LABELS)];

/** Fields without effect unless the request has one of these. */
const OWNERS = {
  mask_image: ["image"],
  last_image: ["image"],
  mask_video: ["control_video", "background_video"],
};
/** Properties of a model that list the names to which entries of a list may refer. */
const NAMES = { control: "controls", image_prompts: "image_prompts" };
const IMAGE_TYPES = "image/png,image/jpeg,image/webp";
const NO_FILE = "Choose or drop a file";

const isVideo = (name) => name.endsWith("_video");

/** Section of the form with the fields of one image or video each. */
export class Media {
  /** @type {Record<string, {url: string, fileName: string}>} Data URLs of the chosen files. */
  #files = {};
  #model;
  #onChange;
  #painter = new MaskPainter((mask) => this.set("mask_image", mask, "painted"));

  /** @param {() => void} onChange Called when the user adds or removes a file. */
  constructor(onChange) {
    this.#onChange = onChange;
    byId("media").append(...Object.keys(LABELS).map((name) => this.#box(name)));
    byId("mask_image-clear").before(this.#paintButton());
  }

  #box(name) {
    const label = `${name}-label`;
    const accept = isVideo(name) ? `video/mp4,video/webm,${IMAGE_TYPES}` : IMAGE_TYPES;
    const thumbnail = isVideo(name) ? null : element("img", { id: `${name}-thumb`, alt: "" });
    const zone = dropZone(
      { id: name, accept, label, onFiles: ([file]) => this.#take(name, file) },
      thumbnail,
      element("span", { id: `${name}-name` }),
    );
    const remove = iconButton("remove", `${name}-clear`, `Remove: ${LABELS[name]}`, () => {
      this.#remove(name);
      byId(name).focus();
    });
    return element(
      "div",
      { "data-field": name, hidden: true },
      optionalLabel(LABELS[name], "span", { class: "label", id: label }),
      element("div", { class: "with-button" }, zone, remove),
    );
  }

  #paintButton() {
    return iconButton("paint", "mask_image-paint", "Paint the mask", () =>
      this.#painter.open(this.#files.image.url, this.#files.mask_image?.url),
    );
  }

  /** The task that the chosen files imply; empty without any. */
  get task() {
    if (this.has("mask_image")) return "inpainting";
    if (!this.has("image")) return "";
    return makesVideos(this.#model) ? "image-to-video" : "image-to-image";
  }

  /** @param {string} name */
  has(name) {
    return name in this.#files;
  }

  /**
   * Set a field's file.
   *
   * @param {string} name
   * @param {string} url Data URL.
   * @param {string} fileName
   */
  set(name, url, fileName) {
    this.#files[name] = { url, fileName };
    this.#changed();
  }

  async #take(name, file) {
    this.set(name, await dataUrl(file), file.name);
  }

  #remove(name) {
    delete this.#files[name];
    this.#changed();
  }

  clear() {
    this.#files = {};
    this.#changed();
  }

  #changed() {
    this.#onChange();
    this.#refresh();
  }

  /** @param {import("./models.js").Model} model */
  show(model) {
    this.#model = model;
    const accepted = Object.keys(this.#files).filter((name) => accepts(model, name));
    this.#files = collect(accepted, (name) => this.#files[name]);
    this.#refresh();
  }

  read() {
    return collect(Object.keys(this.#files).filter(isShown), (name) => this.#files[name].url);
  }

  #refresh() {
    for (const name of Object.keys(LABELS)) this.#refreshBox(name);
    byId("mask_image-paint").hidden = !this.has("image");
    const { strength_needs: needed } = this.#model;
    fieldBox("strength").hidden = !this.has(needed) || !accepts(this.#model, "strength");
  }

  #refreshBox(name) {
    const file = this.#files[name];
    fieldBox(name).hidden = !accepts(this.#model, name) || !(file || this.#hasOwner(name));
    fieldBox(name).querySelector(".optional").hidden = isNeeded(name, this.#model);
    byId(`${name}-clear`).hidden = !file;
    byId(`${name}-name`).textContent = file?.fileName ?? NO_FILE;
    if (!file) byId(name).value = ""; // the same file can be chosen again
    if (!isVideo(name)) showThumbnail(byId(`${name}-thumb`), file);
  }

  #hasOwner(name) {
    const owners = (OWNERS[name] ?? []).filter((owner) => accepts(this.#model, owner));
    return !owners.length || owners.some((owner) => this.has(owner));
  }
}

function showThumbnail(image, file) {
  image.hidden = !file;
  if (file) image.src = file.url;
  else image.removeAttribute("src");
}

function isNeeded(name, { needed, tasks }) {
  if (name === "image" && !tasks.some((task) => task.startsWith("text-"))) return true;
  if (name === "mask_image" && tasks.every((task) => task === "inpainting")) return true;
  return needed.includes(name);
}

/** Section of the form with the lists of images, whose entries have settings. */
export class ImageLists {
  /** @type {Record<string, {image: string, fileName: string, values: object}[]>} */
  #entries = {};
  /** @type {Record<string, Record<string, import("./schema.js").Field>>} Settings by list. */
  #settings = {};
  #model;

  /** @param {Record<string, import("./schema.js").Field>} fields All fields of requests. */
  constructor(fields) {
    for (const name of Object.keys(LIST_LABELS)) {
      const { image: _image, ...settings } = fields[name].members ?? {};
      this.#settings[name] = settings;
      this.#entries[name] = [];
      byId("lists").append(this.#box(name));
    }
  }

  #box(name) {
    const label = `${name}-label`;
    const zone = dropZone(
      {
        id: name,
        accept: IMAGE_TYPES,
        multiple: true,
        label,
        onFiles: (files) => this.#add(name, files),
      },
      element("span", {}, "Choose or drop files"),
    );
    return element(
      "div",
      { "data-field": name, hidden: true },
      optionalLabel(LIST_LABELS[name], "span", { class: "label", id: label }),
      zone,
      element("div", { class: "chosen", id: `${name}-list` }),
    );
  }

  /**
   * Replace a list by one image.
   *
   * @param {string} name
   * @param {string} image Data URL.
   * @param {string} fileName
   * @param {object} values Settings of the image.
   */
  set(name, image, fileName, values) {
    this.#entries[name] = [{ image, fileName, values }];
    this.#refresh(name);
  }

  clear() {
    for (const name of Object.keys(this.#entries)) this.#clearList(name);
  }

  #clearList(name) {
    this.#entries[name] = [];
    this.#refresh(name);
  }

  async #add(name, files) {
    for (const file of files) {
      this.#entries[name].push({ image: await dataUrl(file), fileName: file.name, values: {} });
    }
    byId(name).value = ""; // the same file can be chosen again
    this.#refresh(name);
  }

  /** @param {import("./models.js").Model} model */
  show(model) {
    this.#model = model;
    for (const name of Object.keys(this.#entries)) {
      if (accepts(model, name)) this.#refresh(name);
      else this.#clearList(name);
    }
  }

  read() {
    const names = Object.keys(this.#entries).filter(
      (name) => this.#entries[name].length && isShown(name),
    );
    return collect(names, (name) => this.#entries[name].map((entry) => this.#value(name, entry)));
  }

  /** An entry without the settings that are empty, for which the server has defaults. */
  #value(name, { image, values }) {
    if (!Object.keys(this.#settings[name]).length) return image;
    const isSet = ([, value]) => value !== "" && !Number.isNaN(value);
    return { image, ...Object.fromEntries(Object.entries(values).filter(isSet)) };
  }

  #refresh(name) {
    const rows = this.#entries[name].map((entry, index) => this.#row(name, entry, index));
    byId(`${name}-list`).replaceChildren(...rows);
  }

  #row(name, entry, index) {
    const remove = () => {
      this.#entries[name].splice(index, 1);
      this.#refresh(name);
      byId(name).focus();
    };
    const settings = Object.entries(this.#settings[name]).map(([setting, field]) =>
      this.#settingBox({ list: name, id: `${name}-${index}-${setting}`, setting, field, entry }),
    );
    return element(
      "div",
      { class: "entry" },
      element("img", { src: entry.image, alt: "" }),
      element("span", {}, entry.fileName),
      button("Remove", remove, { "aria-label": `Remove ${entry.fileName}` }),
      settings.length ? element("div", { class: "members" }, ...settings) : null,
    );
  }

  #settingBox({ list, id, setting, field, entry }) {
    const names = setting === "name" ? Object.keys(this.#model[NAMES[list]]) : null;
    if (names && !names.includes(entry.values.name)) entry.values.name = names[0];
    const input = names
      ? nameInput(id, names)
      : inputFor(id, field, { placeholder: field.default });
    input.value = entry.values[setting] ?? "";
    input.addEventListener("input", () => {
      entry.values[setting] = input.type === "number" ? input.valueAsNumber : input.value;
    });
    return element("div", {}, element("label", { for: id }, field.title), input);
  }
}

function nameInput(id, names) {
  const select = choiceInput(id, names);
  select.options[0].remove(); // a name is required
  return select;
}

/** Label around a file input, which takes dropped files, too. */
function dropZone({ id, accept, label, onFiles, ...attributes }, ...children) {
  const onchange = ({ target }) => target.files.length && onFiles([...target.files]);
  const input = element("input", {
    class: "unseen",
    id,
    type: "file",
    accept,
    "aria-labelledby": label,
    onchange,
    ...attributes,
  });
  const zone = element("label", { class: "drop", id: `${id}-drop`, for: id }, input, ...children);
  for (const type of ["dragover", "dragleave", "drop"]) {
    zone.addEventListener(type, (event) => {
      event.preventDefault();
      zone.classList.toggle("over", type === "dragover");
      if (type === "drop" && event.dataTransfer.files.length)
        onFiles([...event.dataTransfer.files]);
    });
  }
  return zone;
}

function iconButton(name, id, label, onclick) {
  const attributes = {
    class: "icon",
    type: "button",
    id,
    "aria-label": label,
    title: label,
    onclick,
  };
  return element("button", attributes, icon(name));
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
