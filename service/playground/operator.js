/** Operators' page: queues, pools, running jobs and failures, with actions for the audit log. */

import { Api, Problem } from "./api.js";
import { button, byId, element, showServerState, sleep } from "./dom.js";

const INTERVAL_MS = 2000;
const FRESH = { cache: "no-store" };

const api = new Api("atelier-operator-key");

/**
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: object) => string | Node[]} value Text, or buttons.
 * @property {string} [className]
 */

/** @returns {Column} */
const text = (title, value) => ({ title, value });
/** @returns {Column} */
const number = (title, value) => ({ title, value, className: "number" });
/** @returns {Column} */
const actions = (value) => ({ title: "", value, className: "acts" });

/** Columns of each table of `GET /v1/admin/overview`, and of the audit log. */
const TABLES = {
  waiting: [
    text("Model", ({ model }) => model),
    text("Tenant", ({ tenant }) => tenant),
    number("Jobs", ({ jobs }) => jobs),
    number("Device-seconds", (queue) => queue.device_seconds.toFixed(1)),
  ],
  workers: [
    text("Worker", ({ name }) => name),
    text("Model", ({ model }) => model),
    text("State", ({ ready }) => (ready ? "ready" : "not ready")),
    text("Layout", ({ layout }) => layout ?? ""),
    number("Slots", ({ slots }) => slots ?? ""),
    number("Jobs", ({ running }) => running),
    actions(({ name }) => [
      targetButton("Pause", "pool", name),
      targetButton("Drain", "pool", name, { drain: true }),
    ]),
  ],
  paused: [
    text("What", ({ kind, name }) => `${kind} ${name}`),
    text("By", ({ by }) => by),
    text("Since", ({ at }) => time(at)),
    text("Reason", ({ reason }) => reason),
    text("Drained", ({ drains }) => (drains ? "yes" : "no")),
    actions(({ kind, name }) => [targetButton("Resume", kind, name)]),
  ],
  running: [
    text("Job", ({ id }) => id),
    text("Tenant", ({ tenant }) => tenant),
    text("Model", (job) => job.served_by),
    text("Worker", ({ pool }) => pool ?? ""),
    text("Stage", ({ stage }) => stage ?? ""),
    number("Steps", ({ step, steps }) => `${step} of ${steps}`),
    number("Attempts", ({ attempts }) => attempts),
    actions(({ id }) => [jobButton("Requeue", id), jobButton("Cancel", id)]),
  ],
  failed: [
    text("Job", ({ id }) => id),
    text("Tenant", ({ tenant }) => tenant),
    text("Model", (job) => job.served_by),
    text("Worker", ({ pool }) => pool ?? ""),
    text("At", (job) => time(job.finished_at)),
    text("Why", ({ error }) => (error ? `${error.code}: ${error.message}` : "")),
  ],
  audit: [
    text("At", ({ at }) => time(at)),
    text("Who", ({ name }) => name),
    text("From", ({ address }) => address),
    text("Act", ({ act, target }) => `${act} ${target}`),
    text("Reason", ({ reason }) => reason),
    text("Outcome", ({ outcome, error }) => (error ? `${outcome}: ${error}` : outcome)),
  ],
};

const time = (timestamp) => (timestamp ? new Date(timestamp).toLocaleTimeString() : "");

/** Button that pauses, drains or resumes a pool, model or tenant. */
function targetButton(label, kind, name, body = {}) {
  const act = label === "Resume" ? "resume" : "pause";
  const path = `${kind}s/${encodeURIComponent(name)}/${act}`;
  return actionButton(label, `${kind} ${name}`, path, body);
}

function jobButton(label, id) {
  return actionButton(label, id, `jobs/${encodeURIComponent(id)}/${label.toLowerCase()}`, {});
}

function actionButton(label, target, path, body) {
  const onclick = async ({ currentTarget }) => {
    currentTarget.disabled = true;
    try {
      await api.post(`/v1/admin/${path}`, { reason: byId("reason").value, ...body });
      showMessage(`${label}: ${target}`);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      showMessage(`${label}: ${error.message}`, true);
    }
    await refresh();
  };
  return button(label, onclick, { "aria-label": `${label} ${target}` });
}

function showMessage(message, isError = false) {
  byId("message").textContent = message;
  byId("message").classList.toggle("error", isError);
}

function showTable(id, rows) {
  const box = byId(id);
  if (box.contains(document.activeElement)) return; // a focused button stays
  const none = element("p", { class: "none" }, "none");
  box.replaceChildren(rows.length ? table(TABLES[id], rows) : none);
}

function table(columns, rows) {
  const header = columns.map(({ title, className }) =>
    title ? element("th", { scope: "col", class: className }, title) : element("td"),
  );
  const body = rows.map((row) =>
    element("tr", {}, ...columns.map(({ value, className }) => cell(value(row), className))),
  );
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...header)),
    element("tbody", {}, ...body),
  );
}

function cell(value, className) {
  return element("td", { class: className }, ...[value].flat());
}

async function refresh() {
  try {
    const [overview, audit] = await Promise.all([
      api.getJson("/v1/admin/overview", FRESH),
      api.getJson("/v1/admin/audit", FRESH),
    ]);
    for (const [name, rows] of Object.entries(overview)) showTable(name, rows);
    showTable("audit", audit.data.reverse());
    byId("all").hidden = false;
    byId("key-form").hidden = true;
    showServerState("ready", "ready");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    showFailure(error);
  }
}

function showFailure({ status, message }) {
  const isRefused = status === 401 || status === 403;
  if (isRefused) byId("all").hidden = true;
  byId("key-form").hidden = !isRefused;
  showServerState("gone", isRefused && !api.key ? "key needed" : message);
}

function connectForms() {
  byId("reason-form").addEventListener("submit", (event) => event.preventDefault());
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    api.key = byId("key").value.trim();
    byId("key").value = "";
    refresh();
  });
}

async function main() {
  connectForms();
  await refresh();
  for (;;) {
    await sleep(INTERVAL_MS);
    const waitsForKey = !byId("key-form").hidden;
    if (!document.hidden && !waitsForKey) await refresh();
  }
}

main();
