/** Views of a job's outputs: images, videos, strips of frames, drafts, settings, downloads. */

import { adaptersText } from "./adapters.js";
import { button, byId, element } from "./dom.js";

const CALM = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * @typedef {object} Output
 * @property {number} index
 * @property {string} url
 * @property {string} content_type
 * @property {number} width
 * @property {number} height
 * @property {number} seed
 * @property {number | null} num_frames Null for images.
 *
 * @typedef {object} Job `GET /v1/jobs/{id}`.
 * @property {string} id
 * @property {string} state
 * @property {string} model
 * @property {Record<string, any>} request The request, with all defaults.
 * @property {Output[]} outputs
 */

/** @param {Output} output */
const isVideo = ({ content_type: type }) => type.startsWith("video/");

/**
 * Create the views of a finished job's outputs. Images can be enlarged.
 *
 * @param {import("./api.js").Api} api
 * @param {Job} job
 */
export function outputViews(api, job) {
  const videos = framesByVideo(job);
  if (videos.length) return videos.map((frames) => strip(api, frames, job.request.prompt));
  const { prompt } = job.request;
  const views = job.outputs.map((output) => {
    if (isVideo(output)) return video(api, output, { controls: true, "aria-label": prompt });
    const onclick = () => openViewer(api, job, output);
    return cell(`Enlarge: ${prompt}`, onclick, image(api, output, prompt));
  });
  return [grid(views)];
}

/**
 * Create the views of drafts. A click on a draft finishes it.
 *
 * @param {import("./api.js").Api} api
 * @param {Job} job
 * @param {(index: number) => void} onChoose Called with the index of the image or video.
 */
export function draftViews(api, job, onChoose) {
  const views = drafts(job).map((output, index) => {
    const onclick = ({ currentTarget }) => {
      currentTarget.disabled = true;
      onChoose(index);
    };
    const view = isVideo(output) ? video(api, output) : image(api, output, "");
    return cell(`Finish number ${index + 1}`, onclick, view);
  });
  return [grid(views)];
}

/**
 * Return one output per draft: of videos in single frames, the first frames.
 *
 * @param {Job} job
 */
export function drafts(job) {
  const videos = framesByVideo(job);
  return videos.length ? videos.map(([first]) => first) : job.outputs;
}

/** Group frames that are outputs of their own by video; empty if the outputs are whole. */
function framesByVideo({ outputs, request }) {
  const count = request.num_frames ?? 1;
  const areWhole = outputs.some(
    ({ num_frames, content_type }) => num_frames || content_type === "image/gif",
  );
  if (count < 2 || areWhole) return [];
  const starts = outputs.filter((_, index) => index % count === 0);
  return starts.map((_, index) => outputs.slice(index * count, (index + 1) * count));
}

function image(api, { width, height, url }, alt) {
  return api.link(element("img", { alt, loading: "lazy", width, height }), "src", url);
}

function video(api, { width, height, url }, attributes = {}) {
  const loops = { loop: true, playsinline: true, preload: "auto" };
  const node = element("video", { ...loops, width, height, ...attributes });
  Object.assign(node, { muted: true, autoplay: !CALM.matches }); // browsers block others' autoplay
  return api.link(node, "src", url);
}

function strip(api, frames, prompt) {
  const images = frames.map((frame, index) => image(api, frame, `Frame ${index + 1}`));
  const label = `Frames: ${prompt}`;
  return element(
    "div",
    { class: "strip", tabindex: 0, role: "group", "aria-label": label },
    ...images,
  );
}

function cell(label, onclick, view) {
  const attributes = { class: "open", type: "button", "aria-label": label, title: label, onclick };
  return element("button", attributes, view);
}

function grid(views) {
  const node = element("div", { class: "stage" }, ...views);
  node.style.setProperty("--columns", Math.ceil(Math.sqrt(views.length)));
  return node;
}

/** Show an image at its full size, with its settings. */
function openViewer(api, job, output) {
  const viewer = byId("viewer");
  const close = button("Close", () => viewer.close());
  const enlarged = image(api, output, job.request.prompt);
  enlarged.style.setProperty("--ratio", output.width / output.height);
  const details = element(
    "div",
    { class: "body" },
    element("p", { class: "prompt" }, job.request.prompt),
    settingsList(job, output.seed),
    element("div", { class: "actions" }, downloadLink(api, job, output, "Download"), close),
  );
  viewer.replaceChildren(enlarged, details);
  viewer.showModal();
  close.focus();
}

/** Close the viewer by a click next to the image. */
export function connectViewer() {
  byId("viewer").addEventListener("click", ({ target }) => {
    if (target === byId("viewer")) target.close();
  });
}

/**
 * Create a download link per output. The links of many frames are folded.
 *
 * @param {import("./api.js").Api} api
 * @param {Job} job
 */
export function downloads(api, job) {
  const { outputs } = job;
  if (outputs.length === 1) return [downloadLink(api, job, outputs[0], "Download")];
  const links = outputs.map((output) => {
    const number = output.index + 1;
    return downloadLink(api, job, output, `↓ ${number}`, `Download number ${number}`);
  });
  if (!framesByVideo(job).length) return links;
  const title = element("summary", {}, `Download ${outputs.length} frames`);
  return [element("details", {}, title, element("div", { class: "actions" }, ...links))];
}

function downloadLink(api, job, output, text, label = null) {
  const extension = output.content_type.split("/")[1].replace("jpeg", "jpg");
  const download = `atelier-${job.model}-${output.seed}.${extension}`;
  const link = element("a", { class: "plain", download, "aria-label": label }, text);
  return api.link(link, "href", output.url);
}

/**
 * Create the list of a job's settings.
 *
 * @param {Job} job
 * @param {number | string} seed Seed of one output, or of the request.
 */
export function settingsList(job, seed = job.request.seed) {
  const rows = Object.entries({
    ...settings(job.request),
    seed,
    model: job.model,
    took: duration(job),
  });
  const shown = rows.filter(([, value]) => value != null && value !== "");
  const items = shown.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, String(value))),
  );
  return element("dl", { class: "settings" }, ...items);
}

function settings(request) {
  const { hires, upscale } = request;
  return {
    size: `${request.width} × ${request.height}`,
    frames: request.num_frames,
    fps: request.fps,
    steps: request.num_inference_steps,
    guidance: request.guidance_scale,
    "guidance 2": request.guidance_scale_2,
    scheduler: request.scheduler?.name,
    adapters: adaptersText(request.loras),
    "hires fix": hires && `${hires.width} × ${hires.height} by ${hires.upscaler}`,
    upscaled: upscale && `${upscale.scale} times by ${upscale.name}`,
    quality: request.quality === "exact" ? null : request.quality,
    "true CFG": request.true_cfg_scale > 1 ? request.true_cfg_scale : null,
    strength: request.image ? request.strength : null,
    not: request.negative_prompt,
  };
}

function duration({ started_at: start, finished_at: end }) {
  const durationS = (Date.parse(end) - Date.parse(start)) / 1000;
  return Number.isFinite(durationS) ? `${durationS.toFixed(durationS < 10 ? 1 : 0)} s` : null;
}
