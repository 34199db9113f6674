/** Settings from the files of finished images and videos, which contain the request. */

import { parse } from "./api.js";
import { byId } from "./dom.js";
import { clearMistakes, showAlert } from "./field_errors.js";

const NAMESPACE = "urn:atelier:recipe:1:";
const PACKET_START = "<x:xmpmeta";
const PACKET_END = "</x:xmpmeta>";

/**
 * Restore settings from a file that is chosen in the form, or dropped anywhere on the page.
 *
 * @param {import("./form.js").Form} form
 */
export function connectRecipes(form) {
  byId("recipe").addEventListener("change", ({ target }) => {
    restore(form, target.files[0]);
    target.value = ""; // the same file can be chosen again
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (event.defaultPrevented) return; // a field takes the file
    event.preventDefault();
    restore(form, event.dataTransfer.files[0]);
  });
}

async function restore(form, file) {
  if (!file) return;
  const recipe = await readRecipe(file).catch(() => null);
  clearMistakes();
  if (!recipe?.request) {
    showAlert(`${file.name} holds no settings: it was made without metadata, or saved again.`);
    return;
  }
  if (!form.hasModel) {
    showAlert("No model is served yet. Try again later.");
    return;
  }
  form.replace(recipe.request);
  byId("restored").textContent = note(file.name, recipe, form);
  byId("restored").hidden = false;
}

/** Read the recipe in a file's XMP packet, which every format contains as plain text. */
async function readRecipe(file) {
  const bytes = await file.arrayBuffer();
  const text = new TextDecoder("latin1").decode(bytes); // one character per byte
  const start = text.indexOf(PACKET_START);
  const end = text.indexOf(PACKET_END, start);
  if (start < 0 || end < 0) return null;
  const packet = new TextDecoder().decode(bytes.slice(start, end + PACKET_END.length));
  const xml = new DOMParser().parseFromString(packet, "application/xml");
  const recipe = xml.getElementsByTagNameNS(NAMESPACE, "recipe")[0];
  return recipe ? parse(recipe.textContent) : null;
}

/** What the form has now, and what the recipe lacks. */
function note(fileName, { request, images = {} }, form) {
  const inputs = Object.keys(images).map((field) => field.replaceAll("_", " "));
  const sentences = [
    `The form has the settings of ${fileName}.`,
    form.serves(request.model) ? "" : `The model ${request.model} is not served here.`,
    "prompt" in request ? "" : "It holds no prompt.",
    inputs.length ? `Add what it was made from: ${inputs.join(", ")}.` : "",
  ];
  return sentences.filter(Boolean).join(" ");
}
