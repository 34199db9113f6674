/** Card of one request in the gallery: its progress, then its outputs or its failure. */

import { Problem } from "./api.js";
import { announce, button, element } from "./dom.js";
import { UPLOADED_FIELDS } from "./media.js";
import { downloads, drafts, draftViews, outputViews, settingsList } from "./results.js";

const ENDED_STATES = ["succeeded", "paused", "failed", "canceled", "expired"];
const STAGES = {
  loading_adapters: "loading adapters",
  decoding: "decoding",
  upscaling: "upscaling",
  storing: "storing",
};

/**
 * @typedef {object} CardActions What the buttons of a card need from the page.
 * @property {(body: object, path?: string, sent?: object) => void} submit See `Gallery.submit`.
 * @property {(request: object) => void} use Fill the form in.
 * @property {(card: Card) => void} remove Remove the card from the gallery.
 */

/** A request and, once the server has accepted it, its job. */
export class Card {
  node = element("article", { class: "card" });
  /** @type {import("./results.js").Job | null} Null until the request is accepted. */
  job = null;
  lastEventId = "";
  isRemoved = false;
  /** Aborts the request until it is accepted. */
  abort = new AbortController();
  #api;
  #body;
  #actions;
  #bar = element("progress", { max: 1, value: 0, "aria-label": "Progress" });
  #status = element("span", {}, "sending");
  #percentage = element("span");
  #stage = element("div", { class: "stage" });
  #cancelButton = button("Cancel", () => this.#cancel());

  /**
   * @param {import("./api.js").Api} api
   * @param {object} body The request as it was sent. Only this has its images and videos.
   * @param {CardActions} actions
   */
  constructor(api, body, actions) {
    this.#api = api;
    this.#body = body;
    this.#actions = actions;
    this.node.dataset.state = "waiting";
    const status = element("div", { class: "status" }, this.#status, this.#percentage);
    this.#render([this.#stage], [this.#prompt(), this.#bar, status], [this.#cancelButton]);
  }

  get id() {
    return this.job?.id;
  }

  get isEnded() {
    return ENDED_STATES.includes(this.job?.state);
  }

  get request() {
    return { ...this.#body, ...this.job?.request };
  }

  #render(views, details, actions) {
    const buttons = element("div", { class: "actions" }, ...actions);
    this.node.replaceChildren(...views, element("div", { class: "body" }, ...details, buttons));
  }

  #prompt() {
    const { prompt = "" } = this.request;
    return element("p", { class: "prompt", title: prompt }, prompt);
  }

  /**
   * Show what happens to the job.
   *
   * @param {string} text
   * @param {number} [step] Steps that are done.
   * @param {number} [steps]
   */
  showStatus(text, step, steps) {
    this.#status.textContent = text;
    this.#percentage.textContent = steps ? `${Math.floor((100 * step) / steps)} %` : "";
    if (steps) Object.assign(this.#bar, { max: steps, value: step });
  }

  /** @param {number | null} [position] Number of jobs that are ahead in the queue, if known. */
  showPosition(position) {
    if (this.isEnded || this.job?.state === "running") return;
    if (position == null) this.showStatus("waiting");
    else this.showStatus(position > 0 ? `waiting, ${position} ahead` : "waiting, next in line");
  }

  #showPreview(src) {
    const { width, height } = this.request;
    const alt = "Preview of the unfinished image";
    this.#stage.replaceChildren(element("img", { class: "blur", src, alt, width, height }));
  }

  /** Show a job of which no events have been received. */
  show(job) {
    this.job = job;
    if (this.isEnded) this.#showEnd();
    else if (job.state === "running") this.#showProgress(job.progress, job.detail);
    else this.showPosition(job.queue?.position);
  }

  #showProgress({ step, steps }, detail) {
    if (steps) this.showStatus(progressText(detail, step, steps), step, steps);
  }

  /**
   * Apply an event of the job.
   *
   * @param {{id?: string, name: string, data: any}} event
   */
  async apply({ id, name, data }) {
    this.lastEventId = id || this.lastEventId;
    if (name === "queued") {
      this.job = { ...this.job, state: name };
      this.showPosition(data.position);
    } else if (name === "running") {
      this.job = { ...this.job, state: name };
      this.showStatus("starting");
    } else if (name === "progress" || name === "preview") {
      this.#showProgress(data.progress ?? data, data.detail);
      const source = data.preview ?? data.image;
      if (source) this.#showPreview(source);
    } else if (ENDED_STATES.includes(name)) {
      this.show(data.outputs ? data : await this.#api.getJson(`/v1/jobs/${this.id}`));
      announce(this.#announcement());
    }
  }

  #announcement() {
    const { state } = this.job;
    const words = { succeeded: "Finished", paused: "Choose" }[state] ?? state;
    return `${words}: ${this.request.prompt}`;
  }

  #showEnd() {
    const { state } = this.job;
    this.node.dataset.state = state;
    if (state === "succeeded") this.#showOutputs();
    else if (state === "paused") this.#showDrafts();
    else this.#showFailure();
  }

  #showOutputs() {
    const links = downloads(this.#api, this.job);
    const details = [this.#prompt(), ...this.#warnings(), settingsList(this.job)];
    const again = this.#againButton("Another seed");
    const actions = [...links, again, this.#useButton(), this.#removeButton()];
    this.#render(outputViews(this.#api, this.job), details, actions);
  }

  #showDrafts() {
    const views = draftViews(this.#api, this.job, (index) => this.#finish({ images: [index] }));
    const hint = element("p", { class: "hint" }, draftsText(this.job));
    const details = [this.#prompt(), hint, ...this.#warnings(), settingsList(this.job)];
    const text = drafts(this.job).length > 1 ? "Finish all" : "Finish";
    const finish = button(text, () => this.#finish({}));
    const again = this.#againButton("Other seeds");
    this.#render(views, details, [finish, again, this.#useButton(), this.#removeButton()]);
  }

  #showFailure() {
    const { state, error } = this.job;
    const reasons = { canceled: "Canceled.", expired: "Its deadline passed." };
    const reason = reasons[state] ?? error?.message ?? "It failed.";
    const hint = element("p", { class: state === "failed" ? "error" : "hint" }, reason);
    this.#render(
      [],
      [this.#prompt(), hint],
      [this.#againButton("Try again"), this.#removeButton()],
    );
  }

  /** What the server accepted, but changed. */
  #warnings() {
    const warnings = this.job.warnings ?? [];
    return warnings.map(({ field, message }) =>
      element("p", { class: "hint warning" }, `${field}: ${message}`),
    );
  }

  /** Null if the request had files that the page no longer has, after a reload. */
  #againButton(text) {
    const isLost = UPLOADED_FIELDS.some((name) => this.request[name] && !this.#body[name]);
    if (isLost) return null;
    const { seed: _seed, ...body } = this.#body;
    return button(text, () => this.#actions.submit(body), { title: "Again with another seed" });
  }

  #useButton() {
    return button("Use settings", () => this.#actions.use(this.request));
  }

  #removeButton() {
    return button("Remove", () => this.#delete());
  }

  async #cancel() {
    this.#cancelButton.disabled = true;
    if (!this.id) {
      this.abort.abort();
      this.#actions.remove(this);
      return;
    }
    try {
      await this.#api.send(`/v1/jobs/${this.id}/cancel`, { method: "POST" });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#cancelButton.disabled = false;
      this.#status.textContent = error.message;
    }
  }

  #delete() {
    this.#actions.remove(this);
    this.#api.send(`/v1/jobs/${this.id}`, { method: "DELETE" }).catch(() => {});
  }

  #finish(choice) {
    const { stop_at_step: _step, draft_ttl_s: _ttl, num_images: _count, ...body } = this.#body;
    this.#actions.submit(body, `/v1/jobs/${this.id}/continue`, choice);
  }
}

function progressText(detail, step, steps) {
  const { stage, expected_s: expectedS } = detail ?? {};
  if (stage !== "compiling") return STAGES[stage] ?? `step ${step} of ${steps}`;
  return `compiling for this size${expectedS ? `, about ${Math.ceil(expectedS)} s` : ""}`;
}

function draftsText({ request, drafts_expire_at: end }) {
  const steps = `${request.stop_at_step} of ${request.num_inference_steps}`;
  const time = new Date(end).toLocaleString();
  return `Stopped at step ${steps}: choose what is finished, until ${time}.`;
}
