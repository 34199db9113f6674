/** Errors of a request, shown at the fields that they concern. */

import { byId, element } from "./dom.js";
import { fieldBox } from "./inputs.js";

/**
 * @typedef {object} Mistake
 * @property {string} field Name, or path of a member: `body.loras.0.scale`.
 * @property {string} message
 */

/** Remove all errors, and the note about restored settings. */
export function clearMistakes() {
  byId("alert").hidden = true;
  byId("restored").hidden = true;
  for (const node of document.querySelectorAll("[data-field] .error")) node.remove();
  for (const input of document.querySelectorAll("[aria-invalid]")) {
    input.removeAttribute("aria-invalid");
    input.removeAttribute("aria-describedby");
  }
}

/**
 * Show errors at their fields, or above the button where a field is not shown.
 *
 * @param {Mistake[]} mistakes
 * @param {string} message Shown if there are no errors of fields.
 */
export function showMistakes(mistakes, message = "") {
  const shown = mistakes.filter(({ field }) => isVisible(nameOf(field)));
  for (const mistake of shown) showAt(nameOf(mistake.field), mistake.message);
  const others = mistakes.filter((mistake) => !shown.includes(mistake)).map(text);
  if (others.length || !mistakes.length) showAlert(others.join(" ") || message);
  if (shown.length) byId(nameOf(shown[0].field)).focus();
}

/**
 * Show an error that concerns no field.
 *
 * @param {string} message
 */
export function showAlert(message) {
  byId("alert").textContent = message;
  byId("alert").hidden = false;
}

const text = ({ field, message }) => (field ? `${field}: ${message}` : message);

const nameOf = (field) => field.split(/[.[]/).find((part) => part && part !== "body") ?? "";

const isVisible = (name) => fieldBox(name)?.closest("[hidden]") === null;

function showAt(name, message) {
  const id = `${name}-error`;
  const input = byId(name);
  byId(id)?.remove();
  const sentence = message.charAt(0).toUpperCase() + message.slice(1);
  fieldBox(name).append(element("p", { class: "error", id }, sentence));
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-describedby", id);
  if (byId("more").contains(input)) byId("more").open = true;
}
