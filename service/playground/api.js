/** Client of the server's API: requests with a key, JSON, event streams, and files. */

const UNREACHABLE = "The server can't be reached. Is it running?";

/** Error response of the server, or none at all (status 0). */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {{detail?: string, title?: string, errors?: {field: string, message: string}[]}} body
   */
  constructor(status, body) {
    super(body.detail ?? body.title ?? `The server answered ${status}.`);
    this.status = status;
    this.errors = body.errors ?? [];
  }
}

function fail(error) {
  throw error.name === "AbortError" ? error : new Problem(0, { detail: UNREACHABLE });
}

/** Connection to the server, with the API key that the tab stores until it is closed. */
export class Api {
  #keyName;
  #key = "";
  #onUnauthorized;
  #blobUrls = new Map();

  /**
   * @param {string} keyName Name of the key in the tab's storage.
   * @param {() => void} onUnauthorized Called when the server requires a key, or another one.
   */
  constructor(keyName, onUnauthorized = () => {}) {
    this.#keyName = keyName;
    this.#onUnauthorized = onUnauthorized;
    try {
      this.#key = sessionStorage.getItem(keyName) ?? "";
    } catch {
      // Storage is disabled: a key lasts as long as the page.
    }
  }

  get key() {
    return this.#key;
  }

  set key(text) {
    this.#key = text;
    try {
      sessionStorage.setItem(this.#keyName, text);
    } catch {
      // As above.
    }
  }

  /**
   * Send a request and return the successful response.
   *
   * @param {string} path
   * @param {RequestInit} options
   * @throws {Problem} The server answered with an error, or not at all.
   */
  async send(path, options = {}) {
    const authorization = this.#key ? { Authorization: `Bearer ${this.#key}` } : {};
    const headers = { ...options.headers, ...authorization };
    const response = await fetch(path, { ...options, headers }).catch(fail);
    if (response.ok) return response;
    if (response.status === 401) this.#onUnauthorized();
    throw new Problem(response.status, await response.json().catch(() => ({})));
  }

  /**
   * Request a path and return its JSON. `cache: "no-store"` passes browsers' caches.
   *
   * @param {string} path
   * @param {RequestInit} options
   */
  async getJson(path, options = {}) {
    const response = await this.send(path, { headers: { Accept: "application/json" }, ...options });
    return parse(await response.text().catch(fail));
  }

  /**
   * Send a JSON body.
   *
   * @param {string} path
   * @param {object} body
   * @param {RequestInit} options
   */
  post(path, body, { headers, ...options } = {}) {
    return this.send(path, {
      method: "POST",
      body: serialize(body),
      headers: { "Content-Type": "application/json", ...headers },
      ...options,
    });
  }

  /**
   * Point an attribute of a node at a file of the server, and return the node. Browsers send no key
   * for images and links, so a file that requires one is fetched first.
   *
   * @template {Element} T
   * @param {T} node
   * @param {"src" | "href"} attribute
   * @param {string} url
   * @returns {T}
   */
  link(node, attribute, url) {
    if (!this.#key) {
      node.setAttribute(attribute, url);
    } else {
      this.#blobUrl(url).then(
        (blobUrl) => node.setAttribute(attribute, blobUrl),
        () => this.#blobUrls.delete(url),
      );
    }
    return node;
  }

  #blobUrl(url) {
    if (!this.#blobUrls.has(url)) {
      const file = this.send(url).then((response) => response.blob());
      this.#blobUrls.set(
        url,
        file.then((blob) => URL.createObjectURL(blob)),
      );
    }
    return this.#blobUrls.get(url);
  }

  /**
   * Free the memory of files that `link` has fetched.
   *
   * @param {string[]} urls
   */
  release(urls) {
    for (const url of urls) {
      this.#blobUrls.get(url)?.then(URL.revokeObjectURL, () => {});
      this.#blobUrls.delete(url);
    }
  }
}

/**
 * Parse JSON. Seeds that exceed the exact integers of JavaScript stay texts.
 *
 * @param {string} text
 */
export const parse = (text) => JSON.parse(text.replace(/("seed"\s*:\s*)(\d{16,})/g, '$1"$2"'));

/** Write JSON, with a seed's text as a number. */
function serialize({ seed, ...body }) {
  const text = JSON.stringify(body);
  if (seed === undefined) return text;
  return text.replace(/\}$/, `${text === "{}" ? "" : ","}"seed":${seed}}`);
}

/**
 * Read a stream of server-sent events, whose data are JSON.
 *
 * @param {Response} response
 * @returns {AsyncGenerator<{id?: string, name: string, data: any}>}
 */
export async function* readEvents(response) {
  let event = { name: "message", data: "" };
  for await (const line of lines(response.body)) {
    if (line) {
      addLine(event, line);
    } else {
      if (event.data) yield { ...event, data: parse(event.data) };
      event = { name: "message", data: "" };
    }
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const complete = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = complete.pop();
      yield* complete;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function addLine(event, line) {
  const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
  if (field === "event") event.name = value;
  else if (field === "id") event.id = value;
  else if (field === "data") event.data += (event.data && "\n") + value;
}
