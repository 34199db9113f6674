/** Dialog in which a mask is painted over an image. */

import { byId, element } from "./dom.js";

/** Longer side of a painted mask. The server resizes masks to their images. */
const MAX_SIDE_PX = 1024;

/** Painter of masks: strokes are white on a transparent canvas over the image. */
export class MaskPainter {
  #canvas = byId("painter-canvas");
  #context = this.#canvas.getContext("2d", { willReadFrequently: true });
  #lastPoint = null;
  #onMask;

  /** @param {(url: string) => void} onMask Called with the data URL of each finished mask. */
  constructor(onMask) {
    this.#onMask = onMask;
    this.#canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    this.#canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) this.#strokeTo(event);
    });
    byId("painter-erase").addEventListener("click", () => this.#erase(!this.#erases));
    byId("painter-clear").addEventListener("click", () => this.#clear());
    byId("painter-cancel").addEventListener("click", () => byId("painter").close());
    byId("painter-done").addEventListener("click", () => this.#finish());
    byId("brush").addEventListener("input", () => {
      byId("brush-size").textContent = `${byId("brush").value} %`;
    });
  }

  /**
   * Open the dialog.
   *
   * @param {string} imageUrl
   * @param {string} [maskUrl] Mask to begin with.
   */
  async open(imageUrl, maskUrl) {
    const image = await load(imageUrl);
    this.#resize(image);
    byId("painter-image").src = imageUrl;
    if (maskUrl) this.#draw(await load(maskUrl));
    this.#erase(false);
    byId("painter").showModal();
  }

  #resize({ naturalWidth, naturalHeight }) {
    const scale = Math.min(1, MAX_SIDE_PX / Math.max(naturalWidth, naturalHeight));
    this.#canvas.width = Math.max(1, Math.round(naturalWidth * scale));
    this.#canvas.height = Math.max(1, Math.round(naturalHeight * scale));
    const ratio = this.#canvas.width / this.#canvas.height;
    this.#canvas.parentElement.style.setProperty("--ratio", ratio);
  }

  /** Draw a mask as strokes: opaque where it is white, transparent elsewhere. */
  #draw(mask) {
    const { width, height } = this.#canvas;
    this.#context.drawImage(mask, 0, 0, width, height);
    const pixels = this.#context.getImageData(0, 0, width, height);
    for (let i = 0; i < pixels.data.length; i += 4) {
      pixels.data[i + 3] = pixels.data[i] >= 128 ? 255 : 0;
      pixels.data.fill(255, i, i + 3);
    }
    this.#context.putImageData(pixels, 0, 0);
  }

  get #erases() {
    return byId("painter-erase").getAttribute("aria-pressed") === "true";
  }

  #erase(erases) {
    byId("painter-erase").setAttribute("aria-pressed", String(erases));
  }

  #clear() {
    this.#context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
  }

  #begin(event) {
    this.#canvas.setPointerCapture(event.pointerId);
    this.#lastPoint = null;
    this.#strokeTo(event);
  }

  #strokeTo(event) {
    const point = this.#pointOf(event);
    const context = this.#context;
    context.globalCompositeOperation = this.#erases ? "destination-out" : "source-over";
    context.strokeStyle = "white";
    context.lineCap = "round";
    context.lineWidth = this.#brushPx;
    context.beginPath();
    context.moveTo(...(this.#lastPoint ?? point));
    context.lineTo(...point);
    context.stroke();
    this.#lastPoint = point;
  }

  get #brushPx() {
    return (byId("brush").valueAsNumber / 100) * Math.max(this.#canvas.width, this.#canvas.height);
  }

  #pointOf({ clientX, clientY }) {
    const { left, top, width, height } = this.#canvas.getBoundingClientRect();
    return [
      ((clientX - left) * this.#canvas.width) / width,
      ((clientY - top) * this.#canvas.height) / height,
    ];
  }

  /** Use the strokes on black as the mask. */
  #finish() {
    const { width, height } = this.#canvas;
    const mask = element("canvas", { width, height });
    const context = mask.getContext("2d");
    context.fillRect(0, 0, width, height);
    context.drawImage(this.#canvas, 0, 0);
    this.#onMask(mask.toDataURL("image/png"));
    byId("painter").close();
  }
}

function load(url) {
  const image = new Image();
  image.src = url;
  return image.decode().then(() => image);
}
