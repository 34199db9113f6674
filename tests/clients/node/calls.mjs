// Calls of the npm package `openai`: `node calls.mjs CALL` prints what it got, as JSON.
// The environment has ATELIER_URL (up to /v1), ATELIER_KEY and PICTURE, a file to edit.
import { createReadStream } from "node:fs";
import OpenAI, { AuthenticationError, BadRequestError } from "openai";

const client = new OpenAI({
  baseURL: process.env.ATELIER_URL,
  apiKey: process.env.ATELIER_KEY,
  maxRetries: 0,
});
const model = "flux-demo";
const prompt = "a red circle";
const sizes = (answer) =>
  answer.data.map((image) => Buffer.from(image.b64_json, "base64").length);

const calls = {
  async generate() {
    return sizes(await client.images.generate({ model, prompt, n: 2, size: "64x64", seed: 7 }));
  },
  async stream() {
    const events = [];
    const asked = { model, prompt, stream: true, partial_images: 2 };
    for await (const event of await client.images.generate(asked)) {
      events.push([event.type, event.b64_json.length]);
    }
    return events;
  },
  async url() {
    const { data } = await client.images.generate({ model, prompt, response_format: "url" });
    const file = await fetch(data[0].url); // without the key
    return { status: file.status, type: file.headers.get("content-type") };
  },
  async edit() {
    const image = createReadStream(process.env.PICTURE);
    return sizes(await client.images.edit({ model, image, prompt: "a blue circle" }));
  },
  async models() {
    const found = [];
    for await (const each of await client.models.list()) found.push([each.id, each.object]);
    return found;
  },
  async refused() {
    try {
      await client.images.generate({ model, prompt, size: "63x64" });
    } catch (error) {
      return { is: error instanceof BadRequestError, type: error.type, param: error.param };
    }
  },
  async keyless() {
    try {
      await client.withOptions({ apiKey: "wrong" }).images.generate({ model, prompt });
    } catch (error) {
      return { is: error instanceof AuthenticationError };
    }
  },
  async video() {
    const asked = { model: "wan-demo", prompt, seconds: "1", size: "64x64" };
    let video = await client.videos.create(asked);
    while (video.status === "queued" || video.status === "in_progress") {
      await new Promise((resolve) => setTimeout(resolve, 100));
      video = await client.videos.retrieve(video.id);
    }
    const content = await client.videos.downloadContent(video.id);
    const bytes = Buffer.from(await content.arrayBuffer()).length;
    const again = await client.videos.remix(video.id, { prompt: "a blue circle" });
    const listed = [];
    for await (const each of await client.videos.list()) listed.push(each.id);
    return {
      status: video.status,
      bytes,
      type: content.headers.get("content-type"),
      remixed: again.remixed_from_video_id === video.id,
      listed: listed.length,
    };
  },
};

console.log(JSON.stringify(await calls[process.argv[2]]()));
