// Checkpoints and adapters: rows come ready-made from the server and are fetched again when a checkpoint is written or one is being exported.
import { refreshTimes } from "../app.js";
import { byId } from "./dom.js";

const PERIOD = 2500;

export class Files {
  constructor() {
    this.box = byId("files-rows");
    setInterval(() => {
      if (this.box.querySelector('[data-busy="1"]') && !document.hidden && this.box.offsetParent) this.draw();
    }, PERIOD);
  }

  async draw() {
    const address = this.box.dataset.fetch || `${location.pathname}?rows=1`;
    // Whoever has a fold open or a button in focus reads on; the rows come with the next change.
    if (this.drawn && (this.box.contains(document.activeElement) || this.box.querySelector("details[open]"))) return;
    try {
      const reply = await fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (!reply.ok || reply.redirected) return;
      // Server-rendered and escaped there; parsed without running anything.
      const parsed = new DOMParser().parseFromString(await reply.text(), "text/html");
      this.box.replaceChildren(...parsed.body.childNodes);
      this.drawn = true;
      refreshTimes(this.box);
    } catch (error) {
      console.warn("The files could not be listed:", error.message);
    }
  }
}
