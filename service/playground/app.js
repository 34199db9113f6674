/** Playground: a form of requests, and a gallery of their results. */

import { Api, Problem } from "./api.js";
import { byId, showServerState, sleep } from "./dom.js";
import { Form } from "./form.js";
import { Gallery } from "./gallery.js";
import { connectRecipes } from "./recipes.js";
import { connectViewer } from "./results.js";
import { readFields } from "./schema.js";

const BUSY_INTERVAL_MS = 1500;
const READY_INTERVAL_MS = 15_000;

async function main() {
  const api = new Api("atelier.key", () => {
    byId("key-box").hidden = false;
  });
  const fields = await loadFields(api);
  const form = new Form(fields, api, (body) => gallery.submit(body));
  const gallery = new Gallery(api, (request) => form.use(request));
  connectRecipes(form);
  connectViewer();
  connectKey(api, () => {
    refresh(api, form);
    gallery.restore();
  });
  if (navigator.platform.startsWith("Mac")) byId("shortcut").textContent = "⌘ ↵";
  gallery.restore();
  for (;;) {
    await refresh(api, form);
    await sleep(form.areModelsReady ? READY_INTERVAL_MS : BUSY_INTERVAL_MS);
  }
}

/** Load the fields of requests, which the form is made from; waits for the server. */
async function loadFields(api) {
  for (;;) {
    try {
      return readFields(await api.getJson("/openapi.json"));
    } catch (error) {
      showFailure(api, error);
      await sleep(BUSY_INTERVAL_MS);
    }
  }
}

async function refresh(api, form) {
  try {
    const { data } = await api.getJson("/v1/models");
    await form.update(data);
  } catch (error) {
    showFailure(api, error);
  }
}

function showFailure(api, error) {
  if (!(error instanceof Problem)) throw error;
  if (error.status !== 401) showServerState("gone", "server out of reach");
  else showServerState("waiting", api.key ? "key not known" : "key needed");
}

function connectKey(api, onChange) {
  byId("key").value = api.key;
  byId("key-box").hidden = !api.key;
  byId("key").addEventListener("change", ({ target }) => {
    api.key = target.value.trim();
    onChange();
  });
}

main();
