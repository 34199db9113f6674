/** Helpers for the DOM, shared by all pages. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Return the page's element with an id.
 *
 * @param {string} id
 */
export const byId = (id) => document.getElementById(id);

/**
 * Create an element.
 *
 * @param {string} tag
 * @param {Record<string, unknown>} attributes Functions become listeners (`onclick`). True sets an
 *   empty attribute; null, undefined and false set none.
 * @param {...(Node | string | null | undefined)} children Null and undefined are left out.
 */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(node, name, value);
  node.append(...children.filter((child) => child != null));
  return node;
}

function setAttribute(node, name, value) {
  if (typeof value === "function") node.addEventListener(name.slice(2), value);
  else if (value === true) node.setAttribute(name, "");
  else if (value != null && value !== false) node.setAttribute(name, value);
}

/**
 * Create a button that does not submit its form.
 *
 * @param {string} text
 * @param {(event: Event) => void} onclick
 * @param {Record<string, unknown>} attributes
 */
export function button(text, onclick, attributes = {}) {
  return element("button", { class: "plain", type: "button", onclick, ...attributes }, text);
}

/**
 * Create an icon of the page's sprite.
 *
 * @param {string} name
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/**
 * Replace the options of a select.
 *
 * @param {HTMLSelectElement} select
 * @param {string[]} values
 * @param {Record<string, string>} labels Texts of values; default: the value itself.
 */
export function setOptions(select, values, labels = {}) {
  const options = values.map((value) => element("option", { value }, labels[value] ?? value));
  select.replaceChildren(...options);
}

/**
 * Select an option, or the first one if none has the value.
 *
 * @param {HTMLSelectElement} select
 * @param {string} value
 */
export function choose(select, value) {
  select.value = value;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
}

/**
 * Have a screen reader read a text out.
 *
 * @param {string} text
 */
export function announce(text) {
  byId("announce").textContent = text;
}

/**
 * Show the state of the server in the page's header.
 *
 * @param {"waiting" | "ready" | "gone"} state
 * @param {string} text
 */
export function showServerState(state, text) {
  const node = byId("server-state");
  if (node.textContent === text) return; // a screen reader would read it out again
  node.dataset.state = state;
  node.textContent = text;
}

/**
 * Wait.
 *
 * @param {number} delayMs
 */
export const sleep = (delayMs) => new Promise((resolve) => setTimeout(resolve, delayMs));
