/** Gallery of this browser's jobs: submits requests, follows their events, restores them. */

import { Problem, readEvents } from "./api.js";
import { Card } from "./card.js";
import { announce, byId, sleep } from "./dom.js";
import { clearMistakes, showMistakes } from "./field_errors.js";
import { UPLOADED_FIELDS } from "./media.js";

const STORAGE_NAME = "atelier.jobs";
const MAX_STORED = 200;
const POSITION_INTERVAL_MS = 1500;
const MIN_RETRY_MS = 1000;
const MAX_RETRY_MS = 8000;
const NARROW = matchMedia("(max-width: 860px)");

/** Ids of this browser's jobs, the newest first. Without storage, they last as long as the page. */
const storedIds = {
  read() {
    try {
      return JSON.parse(localStorage.getItem(STORAGE_NAME)) ?? [];
    } catch {
      return [];
    }
  },
  write(ids) {
    try {
      localStorage.setItem(STORAGE_NAME, JSON.stringify(ids.slice(0, MAX_STORED)));
    } catch {
      // Storage is disabled or full.
    }
  },
  add(id) {
    this.write([id, ...this.read()]);
  },
  remove(id) {
    this.write(this.read().filter((other) => other !== id));
  },
};

const isOver = (card) => card.isRemoved || card.isEnded;

/** Cards of jobs, the newest first. */
export class Gallery {
  #api;
  #cards = new Set();
  #actions;

  /**
   * @param {import("./api.js").Api} api
   * @param {(request: object) => void} onUse Called with the request whose settings are to be used.
   */
  constructor(api, onUse) {
    this.#api = api;
    this.#actions = {
      submit: (...request) => this.submit(...request),
      use: onUse,
      remove: (card) => this.#remove(card),
    };
  }

  #add(body) {
    const card = new Card(this.#api, body, this.#actions);
    this.#cards.add(card);
    byId("gallery").prepend(card.node);
    byId("empty").hidden = true;
    return card;
  }

  #remove(card) {
    card.isRemoved = true;
    card.node.remove();
    this.#cards.delete(card);
    storedIds.remove(card.id);
    this.#api.release((card.job?.outputs ?? []).map(({ url }) => url));
    byId("empty").hidden = this.#cards.size > 0;
  }

  /**
   * Send a request, and show its job. Errors are shown at the form.
   *
   * @param {object} body The request.
   * @param {string} path
   * @param {object} sent Body for that path; default: the request.
   */
  async submit(body, path = "/v1/generate", sent = body) {
    clearMistakes();
    const card = this.#add(body);
    if (NARROW.matches) card.node.scrollIntoView({ block: "nearest", behavior: "smooth" });
    announce("Sent");
    const response = await this.#send(card, path, sent);
    if (!response) return;
    const id = response.headers.get("X-Job-Id");
    storedIds.add(id);
    card.job = { id, state: "queued" };
    this.#follow(card, response);
    this.#watchPosition(card);
  }

  /** Returns the response, or null if the request failed or was canceled. */
  async #send(card, path, sent) {
    try {
      const headers = { Accept: "text/event-stream" };
      return await this.#api.post(path, sent, { headers, signal: card.abort.signal });
    } catch (error) {
      this.#remove(card);
      if (error.name === "AbortError") return null;
      if (!(error instanceof Problem)) throw error;
      showMistakes(error.errors, error.message);
      return null;
    }
  }

  /** Apply a job's events until it ends, over as many connections as necessary. */
  async #follow(card, firstResponse = null) {
    let response = firstResponse;
    let retryMs = MIN_RETRY_MS;
    for (;;) {
      const count = await this.#applyEvents(card, response);
      if (isOver(card)) return;
      retryMs = count ? MIN_RETRY_MS : Math.min(2 * retryMs, MAX_RETRY_MS);
      await sleep(retryMs);
      response = null;
    }
  }

  /** Apply the events of one connection, and return their number. */
  async #applyEvents(card, response) {
    let count = 0;
    try {
      for await (const event of readEvents(response ?? (await this.#events(card)))) {
        await card.apply(event);
        count += 1;
        if (isOver(card)) break;
      }
    } catch (error) {
      if (error.status === 404) this.#remove(card);
      else card.showStatus("connection lost, trying again");
    }
    return count;
  }

  #events({ id, lastEventId }) {
    const last = lastEventId ? { "Last-Event-ID": lastEventId } : {};
    const headers = { Accept: "text/event-stream", ...last };
    return this.#api.send(`/v1/jobs/${id}/events`, { headers });
  }

  /** Show the position of a job while it is queued, for which there are no events. */
  async #watchPosition(card) {
    const isQueued = () => !card.isRemoved && card.job.state === "queued";
    while (isQueued()) {
      const job = await this.#api.getJson(`/v1/jobs/${card.id}`).catch(() => null);
      if (job?.state === "queued" && isQueued()) card.showPosition(job.queue?.position);
      await sleep(POSITION_INTERVAL_MS);
    }
  }

  /** Show the stored jobs that are not shown yet, as far as the server still has them. */
  async restore() {
    const shown = new Set([...this.#cards].map(({ id }) => id));
    const ids = storedIds.read().filter((id) => !shown.has(id));
    const jobs = await Promise.all(ids.map((id) => this.#load(id)));
    for (const job of jobs.filter(Boolean).reverse()) this.#restoreJob(job);
  }

  async #load(id) {
    try {
      return await this.#api.getJson(`/v1/jobs/${encodeURIComponent(id)}`);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status === 404) storedIds.remove(id);
      return null;
    }
  }

  #restoreJob(job) {
    const isSetting = ([name]) => !UPLOADED_FIELDS.includes(name);
    const settings = Object.fromEntries(Object.entries(job.request).filter(isSetting));
    const card = this.#add({ ...settings, model: job.model });
    card.show(job);
    if (card.isEnded) return;
    this.#watchPosition(card);
    this.#follow(card);
  }
}
