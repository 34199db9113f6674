/** Inputs that are made from the schema of a field, and their values. */

import { byId, element } from "./dom.js";
import { isNumber, summary } from "./schema.js";

/**
 * @typedef {import("./schema.js").Field} Field
 */

const UNSET = "as it is";

/**
 * Collect a value per name; undefined ones are left out.
 *
 * @template T
 * @param {string[]} names
 * @param {(name: string) => T | undefined} getValue
 * @returns {Record<string, T>}
 */
export function collect(names, getValue) {
  const entries = names.map((name) => [name, getValue(name)]);
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
}

/**
 * Return the box of a field: its label, input, hint and error.
 *
 * @param {string} name
 * @returns {HTMLElement | null}
 */
export const fieldBox = (name) => document.querySelector(`[data-field="${CSS.escape(name)}"]`);

/**
 * Return whether a field's box is shown. The values of others are not sent.
 *
 * @param {string} name
 */
export const isShown = (name) => !fieldBox(name).hidden;

/**
 * Create the label of an optional field.
 *
 * @param {string} text
 * @param {string} tag
 * @param {Record<string, string>} attributes
 */
export const optionalLabel = (text, tag, attributes) =>
  element(tag, attributes, text, " ", element("span", { class: "optional" }, "(optional)"));

/**
 * Create the box of a field without an input in the page.
 *
 * @param {string} name
 * @param {Field} field
 */
export function generatedBox(name, field) {
  return element(
    "div",
    { "data-field": name },
    optionalLabel(field.title, "label", { for: name }),
    inputFor(name, field),
    element("p", { class: "hint" }, summary(field)),
  );
}

/**
 * Create the input of a field.
 *
 * @param {string} id
 * @param {Field} field
 * @param {Record<string, unknown>} attributes Further attributes of the input.
 */
export function inputFor(id, field, attributes = {}) {
  if (field.kind === "choice") return choiceInput(id, field.choices, attributes);
  if (isNumber(field)) return numberInput(id, field, attributes);
  if (field.kind === "array") return listInput(id, attributes);
  return element("textarea", { id, class: "low", rows: 1, ...attributes });
}

/**
 * Create a select that may stay unset.
 *
 * @param {string} id
 * @param {string[]} choices
 * @param {Record<string, unknown>} attributes
 */
export function choiceInput(id, choices, attributes = {}) {
  const options = choices.map((value) => element("option", { value }, value));
  return element(
    "select",
    { id, ...attributes },
    element("option", { value: "" }, UNSET),
    ...options,
  );
}

function numberInput(id, { kind, minimum, maximum }, attributes) {
  return element("input", {
    id,
    type: "number",
    min: minimum,
    max: maximum,
    step: kind === "integer" ? 1 : "any",
    inputmode: "decimal",
    ...attributes,
  });
}

function listInput(id, attributes) {
  return element("input", {
    id,
    inputmode: "decimal",
    placeholder: "numbers, separated by commas",
    autocomplete: "off",
    ...attributes,
  });
}

const CONVERSIONS = {
  integer: Number,
  number: Number,
  boolean: (text) => text === "true",
  array: (text) =>
    text
      .split(/[\s,]+/)
      .filter(Boolean)
      .map(Number),
  // Seeds exceed the exact integers of JavaScript. This drops leading zeros, which JSON forbids.
  seed: (text) => (/^\d+$/.test(text) ? BigInt(text).toString() : text),
};

/**
 * Read the value of an input; undefined if it is empty.
 *
 * @param {string} id
 * @param {string} kind Kind of the field.
 */
export function readInput(id, kind) {
  const text = byId(id).value.trim();
  if (!text) return undefined;
  return kind in CONVERSIONS ? CONVERSIONS[kind](text) : text;
}
