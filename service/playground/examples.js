/** Prompts to begin with, some with an image that is drawn here. */

import { byId, element } from "./dom.js";
import { accepts, isDemo, makesVideos } from "./models.js";

const IMAGE_PROMPTS = [
  "a red circle on a blue background",
  "a yellow triangle on a black background",
  "a green square on a white background",
];
const VIDEO_PROMPTS = [
  "a red circle moves to the right on a blue background",
  "a yellow square moves up on a black background",
  "a green triangle moves to the left on a white background",
];
const CROSS = "M54 14h18v18h18v18H72v18H54V50H36V32h18z";
const CIRCLE = "M30 58a22 22 0 1 0 44 0a22 22 0 1 0-44 0z";
const OUTLINES = [
  {
    prompt: "a yellow cross on a black background",
    field: "control",
    drawing: { path: CROSS, color: "black", background: "white" },
  },
  {
    prompt: "a green circle on a white background",
    field: "control",
    drawing: { path: CIRCLE, color: "black", background: "white" },
  },
];
const EDITS = [
  {
    prompt: "make the circle green",
    field: "image",
    drawing: { path: CIRCLE, color: "rgb(220 40 40)", background: "rgb(40 70 210)" },
  },
  {
    prompt: "make the background yellow",
    field: "image",
    drawing: { path: CROSS, color: "rgb(245 245 245)", background: "rgb(20 20 20)" },
  },
];
const SIDE_PX = 96;

/**
 * @typedef {object} Example
 * @property {string} prompt
 * @property {string} [field] Field of the image.
 * @property {object} [drawing] Path, color and background of the image.
 */

/**
 * Offer the examples of a model.
 *
 * @param {import("./models.js").Model} model
 * @param {(prompt: string, field?: string, url?: string) => void} onChoose Called with an example's
 *   prompt, and the field and data URL of its image.
 */
export function showExamples(model, onChoose) {
  const examples = examplesOf(model);
  const plain = examples.find(({ field }) => field !== "control");
  byId("prompt").placeholder = plain.prompt;
  byId("examples").replaceChildren(...examples.map((example) => exampleButton(example, onChoose)));
}

/** @returns {Example[]} */
function examplesOf(model) {
  if (isDemo(model) && model.tasks[0] === "image-to-image") return EDITS;
  const outlines = isDemo(model) && accepts(model, "control") ? OUTLINES : [];
  const prompts = makesVideos(model) ? VIDEO_PROMPTS : IMAGE_PROMPTS;
  return [...outlines, ...prompts.map((prompt) => ({ prompt }))];
}

function exampleButton({ prompt, field, drawing }, onChoose) {
  const url = drawing && draw(drawing);
  const attributes = { src: url, alt: "With an image:", width: 24, height: 24 };
  const image = drawing ? element("img", attributes) : null;
  const onclick = () => onChoose(prompt, field, url);
  return element("button", { class: "plain", type: "button", onclick }, image, prompt);
}

function draw({ path, color, background }) {
  const canvas = element("canvas", { width: SIDE_PX, height: SIDE_PX });
  const context = canvas.getContext("2d");
  context.fillStyle = background;
  context.fillRect(0, 0, SIDE_PX, SIDE_PX);
  context.fillStyle = color;
  context.fill(new Path2D(path));
  return canvas.toDataURL();
}
