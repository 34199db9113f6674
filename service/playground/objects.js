/** Fields that are objects of numbers and texts, such as hires fix. */

import { byId, element } from "./dom.js";
import { collect, fieldBox, inputFor, isShown, readInput } from "./inputs.js";
import { isNumber, summary } from "./schema.js";

/** Section of the form: a checkbox for each such field, which shows the inputs of its members. */
export class ObjectFields {
  /** @type {Record<string, Record<string, import("./schema.js").Field>>} Members by field. */
  #members;
  #defaults = {};

  /** @param {Record<string, import("./schema.js").Field>} fields All fields of requests. */
  constructor(fields) {
    const names = Object.keys(fields).filter((name) => !fieldBox(name) && isFlat(fields[name]));
    this.#members = collect(names, (name) => fields[name].members);
    byId("further").append(...names.map((name) => objectBox(name, fields[name])));
  }

  get #names() {
    return Object.keys(this.#members);
  }

  /** @param {import("./models.js").Model} model */
  show(model) {
    this.#defaults = model.defaults;
    this.use(model.defaults);
    const upscalers = model.hires_upscalers.map((value) => element("option", { value }));
    byId("hires-upscaler-names")?.replaceChildren(...upscalers);
  }

  /**
   * Values that equal the model's default are left out, so that the default gives way to fields
   * that exclude it, such as a mask. Null switches a default off.
   */
  read() {
    return collect(this.#names.filter(isShown), (name) => this.#value(name));
  }

  #value(name) {
    const usual = this.#defaults[name];
    if (!byId(name).checked) return usual ? null : undefined;
    const members = this.#members[name];
    const names = Object.keys(members);
    const values = collect(names, (member) => readInput(`${name}-${member}`, members[member].kind));
    const isUsual = usual && names.every((member) => values[member] === usual[member]);
    return isUsual ? undefined : values;
  }

  use(request) {
    for (const name of this.#names) {
      const values = request[name];
      byId(name).checked = Boolean(values);
      byId(`${name}-members`).hidden = !values;
      for (const member of Object.keys(this.#members[name])) {
        byId(`${name}-${member}`).value = values?.[member] ?? "";
      }
    }
  }
}

function isFlat({ kind, members = {} }) {
  const inner = Object.values(members);
  const isSimple = (member) => isNumber(member) || member.kind === "string";
  return kind === "object" && inner.length > 0 && inner.every(isSimple);
}

function objectBox(name, field) {
  const boxes = Object.entries(field.members).map(([member, inner]) =>
    memberBox(`${name}-${member}`, inner),
  );
  const members = element(
    "div",
    { class: "fields", id: `${name}-members`, hidden: true },
    ...boxes,
  );
  const onchange = ({ target }) => {
    members.hidden = !target.checked;
  };
  const checkbox = element("input", { id: name, type: "checkbox", onchange });
  return element(
    "div",
    { "data-field": name, hidden: true },
    element("label", { for: name }, checkbox, " ", field.title),
    element("p", { class: "hint" }, summary(field)),
    members,
  );
}

function memberBox(id, field) {
  const label = element("label", { for: id }, field.title);
  const attributes = { autocomplete: "off", placeholder: field.default };
  if (isNumber(field)) return element("div", {}, label, inputFor(id, field, attributes));
  const list = `${id}-names`;
  const input = element("input", { id, type: "text", list, ...attributes });
  return element("div", {}, label, input, element("datalist", { id: list }));
}
